"""An inference engine's side: memory that can be handed over, the descriptor socket, pools and their pages."""
import array
import contextlib
import fcntl
import hashlib
import os
import pathlib
import socket
import threading

import rig

F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2


class Memory:
    """A memfd, sealed against shrinking unless told otherwise."""

    def __init__(self, size, sealed=True, allow_sealing=True):
        flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if allow_sealing else 0)
        self.fd, self.size = os.memfd_create("pool", flags), size
        os.ftruncate(self.fd, size)
        if sealed and allow_sealing:
            fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK)

    def write(self, offset, data):
        assert os.pwrite(self.fd, data, offset) == len(data)

    def read(self, offset, size):
        return os.pread(self.fd, size, offset)

    def close(self):
        os.close(self.fd)


def hand_over(path, fd, byte=b"F", count=1):
    """The line that the descriptor socket answers with."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(path)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * count))] if count else []
        connection.sendmsg([byte], rights)
        line = b""
        while not line.endswith(b"\n"):
            part = connection.recv(256)
            if part == b"":
                break
            line += part
    return line.decode().strip()


def answered(answer):
    """None for a 503, so that it can be waited for another answer."""
    return None if answer.status == 503 else answer


def hash_of(text):
    return hashlib.sha256(text.encode()).hexdigest()


def page_of(text, size):
    """Bytes that do not compress, the same for the same text."""
    return hashlib.shake_256(text.encode()).digest(size)


class Engine:
    """A registered engine with one pool of `slots` pages in two regions, as an attention layer's K and V."""

    def __init__(self, server, token, *, slots=8, run=4096, pid=None, name="test engine", lease=60, layout=None):
        self.server, self.token, self.slots, self.run = server, token, slots, run
        about = server.call("GET", "/version").json()
        self.socket, self.fd_socket = about["engine_socket"], about["fd_socket"]
        answer = self.register(name, pid or os.getpid(), lease)
        assert answer.status in (200, 201), answer
        self.id = answer.json()["id"]
        self.memory = Memory(2 * slots * run)
        self.layout = layout or self.regions()
        self.pool = None

    def register(self, name, pid, lease, **members):
        boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        body = {"name": name, "kind": "sim", "engine_version": "1", "pid": pid, "boot_id": boot_id,
                "model": {"id": "m", "revision": "r"}, "lease_seconds": lease, **members}
        return self.server.patient("POST", "/v1/engines", self.token, body, unix=self.socket)

    def beat(self):
        """Lives until the process ends, as one that many tests use has to: its lease is a minute at most."""
        def beats():
            number = 0
            while not self.over.wait(5):
                number += 1
                with contextlib.suppress(Exception):  # the server may be away for a while, or for good
                    self.server.call("POST", f"/v1/engines/{self.id}:heartbeat", self.token, {"seq": number}, check=False)

        self.over = threading.Event()
        threading.Thread(target=beats, daemon=True).start()
        return self

    def regions(self, **members):
        half = self.slots * self.run
        return {"kind": "regions", "format": "f16", "engine_version": "1", "tokens_per_block": 16, "slots": self.slots,
                "bytes_per_block": 2 * self.run,
                "regions": [{"offset_bytes": 0, "stride_bytes": self.run, "run_bytes": self.run},
                            {"offset_bytes": half, "stride_bytes": self.run, "run_bytes": self.run}], **members}

    def register_pool(self, memory=None, layout=None, token=None, size=None):
        memory = memory or self.memory
        if token is None:
            token = hand_over(self.fd_socket, memory.fd)
            assert token.startswith("tok_"), token
        body = {"memory": {"kind": "memfd", "fd_token": token, "size_bytes": size or memory.size},
                "layout": layout or self.layout}
        return self.server.call("POST", f"/v1/engines/{self.id}/pools", self.token, body, unix=self.socket)

    def open_pool(self):
        answer = rig.wait_for("a pool", lambda: answered(self.register_pool()))
        assert answer.status == 201, answer
        self.pool = answer.json()["id"]
        return self

    def fill(self, slot, text):
        data = page_of(text, 2 * self.run)
        self.put(slot, data)
        return data

    def put(self, slot, data):
        self.memory.write(slot * self.run, data[:self.run])
        self.memory.write((self.slots + slot) * self.run, data[self.run:])

    def page(self, slot):
        return self.memory.read(slot * self.run, self.run) + self.memory.read((self.slots + slot) * self.run, self.run)

    def call(self, route, session, texts, slots=None, **members):
        body = {"session_id": session, "pool_id": self.pool, "hashes": [hash_of(text) for text in texts], **members}
        if slots is not None:
            body["slots"] = list(slots)
        return self.server.call("POST", route, self.token, body, unix=self.socket)

    def offload(self, session, texts, slots, **members):
        return self.call("/v1/offloads", session, texts, slots, **members)

    def restore(self, session, texts, slots, **members):
        return self.call("/v1/restores", session, texts, slots, **members)

    def lookup(self, session, texts):
        return self.call("/v1/lookups", session, texts)
