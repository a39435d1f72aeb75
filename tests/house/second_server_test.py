"""second_server_test.py KVRUN: a second server on a state folder is refused and takes nothing from the first; after
kill -9 of the first the next start works at once. Once with a short path, once with one too long for a socket."""
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

kvrun = sys.argv[1]
WAIT_S = 60


def fail(text):
    print("FAILED:", text)
    sys.exit(1)


class Server:
    running = []

    def __init__(self, folder):
        self.folder = folder
        self.log = tempfile.TemporaryFile(dir=work)
        self.process = subprocess.Popen([kvrun, "serve", "--state.dir=state", "--http.listen=127.0.0.1:0",
                                         "--http.admin_listen=127.0.0.1:0"], cwd=folder, stdout=self.log, stderr=self.log)
        self.running.append(self.process)

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def ready(self):
        end = time.monotonic() + WAIT_S
        while '"event":"ready"' not in self.said():
            if self.process.poll() is not None or time.monotonic() > end:
                fail(f"a server does not get ready: {self.said()}")
            time.sleep(0.02)
        return self

    def end(self, signal_number):
        self.process.send_signal(signal_number)
        code = self.process.wait(WAIT_S)
        self.running.remove(self.process)
        return code


def answers(folder):
    """Through the socket's name in the state folder, as an engine that was started there would."""
    os.chdir(folder)
    connection = http.client.HTTPConnection("kvrun", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(10)
    connection.sock.connect("state/engine.sock")
    connection.request("GET", "/version")
    status = connection.getresponse().status
    connection.close()
    return status == 200


def life(folder):
    first = Server(folder).ready()
    if not answers(folder):
        fail("the first server does not answer")
    second = Server(folder)
    code = second.process.wait(WAIT_S)
    second.running.remove(second.process)
    if code != 2 or "another kvrun runs on state: stop it, or set state.dir" not in second.said():
        fail(f"a second server must be refused with 2; it ended with {code}: {second.said()}")
    if not answers(folder):
        fail("the second server took the first one's socket away")
    first.end(signal.SIGKILL)
    begun = time.monotonic()
    third = Server(folder).ready()
    if not answers(folder):
        fail("the server after kill -9 does not answer")
    print(f"ok: {len(folder)} characters, {time.monotonic() - begun:.1f} s from kill -9 to ready")
    code = third.end(signal.SIGTERM)
    if code != 0:
        fail(f"the end was not in order ({code}): {third.said()}")
    left = [name for name in os.listdir(os.path.join(folder, "state")) if name.endswith(".sock")]
    if left:
        fail(f"names of sockets are left: {left}")


work = tempfile.mkdtemp(prefix="kvhouse.", dir="/tmp")
try:
    os.chmod(work, 0o711)
    for name in ("s", "a-folder-whose-name-is-long/" * 4):
        place = os.path.join(work, name)
        os.makedirs(place, mode=0o711)
        life(place)
finally:
    os.chdir("/")
    for process in Server.running:
        process.kill()
        process.wait()
    shutil.rmtree(work, ignore_errors=True)
