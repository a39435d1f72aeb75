"""The inference engine's part: memory pools with known bytes in every block, handed to the server by descriptor.

The bytes of a block follow from its hash alone, so what comes back can be judged without having been kept.
"""
import array
import fcntl
import hashlib
import mmap
import os
import socket

from server import Gone

F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2
UNTOUCHED = b"\xa5"

MODEL = {"id": "crash/model", "revision": "1", "fingerprint": hashlib.sha256(b"crash model").hexdigest()}


def block_hash(session, pool_name, index):
    return hashlib.sha256(f"{session}/{pool_name}/{index}".encode()).hexdigest()


def block_bytes(block, size):
    return hashlib.shake_128(block.encode()).digest(size)


class Pool:
    """Slots are dealt to threads by whoever uses it; the server reads and writes only those it is told."""

    def __init__(self, name, page_bytes, slots):
        self.name, self.page_bytes, self.slots, self.id = name, page_bytes, slots, None
        self.size = (page_bytes * slots + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        self.fd = os.memfd_create("crash-" + name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size)
        fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK)
        self.memory = mmap.mmap(self.fd, self.size)
        self.blank = UNTOUCHED * page_bytes

    def write(self, slot, data):
        self.memory[slot * self.page_bytes:(slot + 1) * self.page_bytes] = data

    def read(self, slot):
        return self.memory[slot * self.page_bytes:(slot + 1) * self.page_bytes]

    def layout(self):
        return {"kind": "opaque", "format": "crash-" + self.name, "engine_version": "1", "tokens_per_block": 16,
                "slots": self.slots, "page_bytes": self.page_bytes}


def hand_over(path, fd):
    """The token that the server gives for a descriptor. Gone when the server died meanwhile."""
    line = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(path)
            connection.sendmsg([b"F"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
            while not line.endswith(b"\n"):
                part = connection.recv(128)
                if not part:
                    raise Gone("the descriptor socket closed without an answer")
                line += part
    except OSError as error:
        raise Gone(f"the descriptor socket: {error!r}") from error
    text = line.decode().strip()
    if not text.startswith("tok_"):
        raise ConnectionError(text)
    return text


def register(client, fd_socket, pools):
    """As after every start of the server: the engine and its pools anew."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    answer = client.call("POST", "/v1/engines", {"name": "crash", "kind": "other", "engine_version": "1",
                                                 "pid": os.getpid(), "boot_id": boot, "model": MODEL,
                                                 "lease_seconds": 60})
    if answer.status not in (200, 201):
        raise RuntimeError(f"engine not registered: {answer}")
    engine = answer.json["id"]
    for pool in pools:
        token = hand_over(fd_socket, pool.fd)
        answer = client.call("POST", f"/v1/engines/{engine}/pools",
                             {"memory": {"kind": "memfd", "fd_token": token, "size_bytes": pool.size},
                              "layout": pool.layout()})
        if answer.status != 201:
            raise RuntimeError(f"pool not registered: {answer}")
        pool.id = answer.json["id"]
    return engine
