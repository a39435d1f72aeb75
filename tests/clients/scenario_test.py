"""Both clients, step by step, against a real server: api/clients/scenario.json. Each has a tenant of its own, and must see
what the scenario expects, and the same as the other one."""
import argparse
import contextlib
import json
import os
import pathlib
import queue
import socket
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "http"))
import rig  # noqa: E402

STEP_SECONDS = 120  # until a client has done a step; most of it is a machine under load


class Network:
    """Between a client and the server's socket. What becomes of a request is `mode`: pass, hang (nobody answers), garbage,
    swallow (the server does it, and its answer is lost). Heartbeats hang in each but the first, so that it is a call of the
    scenario that finds out, and never one that comes between two steps."""

    def __init__(self, path, upstream):
        self.upstream, self.mode = upstream, "pass"
        self.lock, self.open = threading.Lock(), set()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def set(self, mode):
        """Connections of before are closed, so that none goes on as it was."""
        with self.lock:
            self.mode = mode
            for connection in self.open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection = self.listener.accept()[0]
                with self.lock:
                    self.open.add(connection)
                    mode = self.mode
                threading.Thread(target=self.serve, args=(connection, mode), daemon=True).start()

    def serve(self, connection, mode):
        with contextlib.suppress(OSError):
            if mode != "pass" and (mode == "hang" or b":heartbeat " in connection.recv(4096, socket.MSG_PEEK)):
                while connection.recv(65536):
                    pass
            elif mode == "garbage":
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            else:
                self.forward(connection, mode)
        with self.lock:
            self.open.discard(connection)
        connection.close()

    def forward(self, connection, mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.connect(self.upstream)
            with self.lock:
                self.open.add(server)
            threading.Thread(target=self.pump, args=(connection, server), daemon=True).start()
            with contextlib.suppress(OSError):
                if mode == "swallow":
                    server.recv(65536)
                else:
                    self.pump(server, connection)
            with self.lock:
                self.open.discard(server)

    @staticmethod
    def pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.set("pass")
        self.listener.close()


class Failed(Exception):
    pass


class Run:
    """One client's way through the scenario."""

    def __init__(self, server, name, command, token):
        self.server, self.name, self.seen = server, name, []
        about = server.call("GET", "/version").json()
        self.folder = tempfile.mkdtemp(prefix="kvc.", dir=server.folder)
        self.network = Network(os.path.join(self.folder, "socket"), about["engine_socket"])
        key = os.path.join(self.folder, "key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write(token)
        arguments = [os.path.join(self.folder, "socket"), about["fd_socket"], key, str(SCENARIO)]
        self.process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def line(self, what):
        try:
            line = self.lines.get(timeout=STEP_SECONDS)
        except queue.Empty:
            raise Failed(f"{self.name}: {what}: nothing after {STEP_SECONDS} s") from None
        if line is None:
            raise Failed(f"{self.name}: {what}: it ended with {self.process.wait()}")
        return json.loads(line)

    def help(self, step):
        if step["do"] == "network":
            self.network.set(step["mode"])
        elif step["action"] == "start":
            self.server.start()
        else:
            if step["action"] == "kill":
                self.server.process.kill()
            self.server.stop()

    def step(self, number, step):
        what = f"step {number} {json.dumps({k: v for k, v in step.items() if k != 'expect'})}"
        seen = self.line(what)
        if "ask" in seen:
            self.help(seen["ask"])
            self.process.stdin.write("done\n")
            self.process.stdin.flush()
        wrong = {name: seen.get(name) for name, value in step.get("expect", {}).items() if seen.get(name) != value}
        if wrong:
            raise Failed(f"{self.name}: {what}\n  expected {step['expect']}\n  but {wrong}\n  in {seen}")
        self.seen.append((what, {name: value for name, value in seen.items() if name not in step.get("varies", ())}))

    def run(self, steps):
        try:
            for number, step in enumerate(steps):
                self.step(number, step)
            if self.process.wait(STEP_SECONDS) != 0:
                raise Failed(f"{self.name} ended with {self.process.returncode}")
        finally:
            self.process.kill()
            self.process.wait()
            self.network.close()
        return self.seen


def drive(name, command, steps):
    server = rig.Server()
    try:
        tenant = server.tenant(name)
        policy = {"tiers": {"dram": {}, "nvme": {}}, "sharing": {"mode": "scope", "scopes": ["prompt"]}}
        answer = server.call("PUT", f"/v1/tenants/{tenant}/policy", server.key(tenant, "security_officer"), policy)
        assert answer.status in (200, 201), answer
        token = server.key(tenant, "engine")
        return Run(server, name, command, token).run(steps)
    finally:
        server.remove()


def main():
    global SCENARIO
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvrun", required=True)
    parser.add_argument("--driver", required=True, help="the driver of libkvrun")
    parser.add_argument("--source", required=True)
    parser.add_argument("--jobs", help="of the runner; this is one job")
    parser.add_argument("--only", help="one of the clients")
    options = parser.parse_args()
    if not rig.postgres_is_here():
        print("PostgreSQL's programs are not installed", file=sys.stderr)
        sys.exit(rig.SKIP)
    rig.options = argparse.Namespace(kvrun=options.kvrun, prism=None)
    rig.contract = rig.Contract(options.source)
    clients = pathlib.Path(options.source, "api/clients")
    SCENARIO = clients / "scenario.json"
    steps = json.loads(SCENARIO.read_text(encoding="utf-8"))["steps"]
    commands = {"libkvrun": [options.driver],
                "python": [sys.executable, str(HERE / "scenario_driver.py"), str(clients / "python/kvrun.py")]}
    try:
        seen = {name: drive(name, command, steps) for name, command in commands.items() if options.only in (None, name)}
        for one, other in zip(*seen.values()) if len(seen) == 2 else ():
            if one != other:
                raise Failed(f"the clients differ:\n  {one}\n  {other}")
    except Failed as failure:
        print(failure, file=sys.stderr)
        sys.exit(1)
    print(f"{len(steps)} steps, {' and '.join(seen)}")


main()
