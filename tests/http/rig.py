"""Starts the real server for a suite, talks to it, and takes everything down again.

A suite ends with `rig.main(__name__)`. Options come from CMake; what is absent makes the suite exit with 77.
"""
import argparse
import atexit
import contextlib
import glob
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from contract import Contract
from exposition import Exposition

SKIP = 77
options = None
contract = None

# Series of these families may come and go: one a route that was used, one a tenant that is large. All others are there
# from second zero, so that the first increase of each is seen.
MAY_COME = ("kvrun_http_requests_total{", "kvrun_http_request_", "kvrun_http_response_bytes_total{", "kvrun_tenant_")


class Answer:
    def __init__(self, status, headers, body, head=False):
        self.status, self.headers, self.body, self.head = status, headers, body, head

    def json(self):
        def once(pairs):
            names = [name for name, _ in pairs]
            assert len(names) == len(set(names)), f"a member twice in {names}"
            return dict(pairs)

        return json.loads(self.body, object_pairs_hook=once)

    @property
    def code(self):
        return self.json().get("code")

    @property
    def pointer(self):
        return self.json().get("errors", [{}])[0].get("pointer")

    def __repr__(self):
        return f"{self.status} {self.body[:400]}"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("kvrun", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def wait_for(what, condition, seconds=60.0):
    """Waits for a condition; the wait's end fails the test."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s for {what}")


def free_port():
    """None of those that the system hands to callers: one that is let go of for a while, such as a database's that stops and
    starts, would be some test's connection by then."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10000, first) if first > 11000 else 0
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return probe.getsockname()[1]


class Server:
    """One server with a private database in a fresh folder."""

    proxy = proxy_port = None

    def __init__(self, *extra, environment=None, prepare=None):
        self.folder = tempfile.mkdtemp(prefix="kvh.")
        self.state = os.path.join(self.folder, "state")
        self.extra = extra
        self.environment = environment or {}
        if prepare:
            prepare(self.state)  # what a server before it left there
        self.log = []
        self.cluster_folder = None
        self.process = None
        atexit.register(self.remove)
        self.start()

    def start(self, **more):
        """`more`: environment variables for this start alone, such as KVRUN_FAULT."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVRUN")}
        environment.update(self.environment, **more)
        if os.environ.get("KV_TEST_POSTGRES_BIN"):  # tests/lib/postgres_programs.sh
            environment["PATH"] = os.environ["KV_TEST_POSTGRES_BIN"] + os.pathsep + environment["PATH"]
        command = [options.kvrun, "serve", f"--state.dir={self.state}", "--http.listen=127.0.0.1:0",
                   "--http.admin_listen=127.0.0.1:0", "--tiers.nvme.bytes=256MiB", "--tiers.dram.bytes=64MiB",
                   "--db.migrate=auto", "--rate.unauthenticated=0", *self.extra]  # many tests ask without a key
        self.ready = threading.Event()
        self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        self.reader = threading.Thread(target=self.read_log, args=(self.process.stderr,), daemon=True)
        self.reader.start()
        if not self.ready.wait(180):
            self.process.kill()
            raise AssertionError("the server is not ready after 180 s:\n" + "".join(self.log[-20:]))
        if self.process.poll() is not None or not hasattr(self, "port"):
            raise AssertionError("the server ended:\n" + "".join(self.log[-20:]))
        self.operator = pathlib.Path(self.state, "operator.key").read_text().strip()
        self.start_proxy()

    def start_proxy(self):
        """With --prism what call() sends goes through a proxy that compares every answer with the contract by itself."""
        if not options.prism:
            return
        self.proxy_port = free_port()
        spec = pathlib.Path(self.folder, "spec.json")
        spec.write_text(json.dumps(contract.without_security()))
        command = [options.prism, "proxy", str(spec), f"http://127.0.0.1:{self.port}", "--host", "127.0.0.1",
                   "--port", str(self.proxy_port), "--errors", "--validate-request", "false"]
        self.proxy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def listens():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.proxy_port)) == 0

        wait_for("the proxy", listens)

    def stop_proxy(self):
        if self.proxy is not None:
            self.proxy.kill()
            self.proxy.wait()
            self.proxy = self.proxy_port = None

    def read_log(self, stream):
        for line in stream:
            self.log.append(line)
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("event") in ("private_cluster_made", "private_cluster_started"):
                self.cluster_folder = entry.get("folder", self.cluster_folder)
            if entry.get("module") == "server" and entry.get("event") == "ready":
                self.port, self.admin_port = entry["port"], entry["admin_port"]
                self.ready.set()
        self.ready.set()

    def stop(self):
        """SIGTERM, and the exit status."""
        self.stop_proxy()
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = -9
        self.reader.join(10)
        self.process.stderr.close()
        self.process = None
        return code

    def remove(self):
        self.stop()
        sockets = pathlib.Path(self.state, "postgres.socket")
        places = [self.cluster_folder or ""] + ([sockets.read_text().strip()] if sockets.exists() else [])
        for place in places:  # what the server puts elsewhere when the state folder does not suit the database
            if os.path.basename(place).startswith(("kvrun-postgres-", "kvrun-db-")):
                shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def call(self, method, path, token=None, body=None, headers=None, **how):
        """One request on a connection of its own; the answer is held to the contract. `body`: bytes as they are, or
        anything that JSON can say. how: admin, unix, timeout, check."""
        send = {"Accept": "*/*", **(headers or {})}
        if token:
            send["Authorization"] = f"Bearer {token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            send.setdefault("Content-Type", "application/json")
        timeout = how.get("timeout", 60)
        if how.get("unix"):
            connection = UnixConnection(how["unix"], timeout)
        else:
            port = self.admin_port if how.get("admin") else self.proxy_port or self.port
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=send)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, response.read(), method == "HEAD")
        finally:
            connection.close()
        if how.get("check", True):
            contract.check(method, path.split("?")[0], answer)
        return answer

    def raw(self, data):
        """Bytes as they are, and all that comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(data)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer

    def fixed_series(self):
        """The series that do not depend on what is asked for."""
        answer = self.call("GET", "/metrics", self.operator, admin=True)
        assert answer.status == 200, answer
        return {series for series in Exposition(answer.body.decode()).samples if not series.startswith(MAY_COME)}

    # --- what most suites need

    def patient(self, *request, **how):
        """A call that is repeated while the answer says that it may be: preparing a test is not the test."""
        def once():
            answer = self.call(*request, **how)
            return None if answer.status == 503 and answer.json()["retryable"] else answer

        return wait_for("an answer other than 503", once, 40)

    def tenant(self, name):
        answer = self.patient("POST", "/v1/tenants", self.operator, {"name": name})
        assert answer.status == 201, answer
        return answer.json()["id"]

    def key(self, tenant, *roles):
        answer = self.patient("POST", f"/v1/tenants/{tenant}/api-keys", self.operator,
                              {"name": "-".join(roles), "roles": list(roles)})
        assert answer.status == 201, answer
        return answer.json()["secret"]

    def session(self, token, model=None):
        answer = self.patient("POST", "/v1/sessions", token, {"model": model or {"id": "m", "revision": "r"}})
        assert answer.status == 201, answer
        return answer.json()["id"]

    def database(self, sql):
        """Rows of a query as text, or None where psql is not installed."""
        psql = postgres_program("psql")
        where = pathlib.Path(self.state, "postgres.socket")
        if psql is None or not where.exists():
            return None
        url = f"host={where.read_text().strip()} port=5432 user=kvrun dbname=postgres connect_timeout=5"
        return subprocess.run([psql, "-XAtq", url, "-c", sql], check=True, capture_output=True, text=True).stdout

    def postmaster(self, data="data"):
        return int(pathlib.Path(self.cluster_folder, data, "postmaster.pid").read_text().split("\n")[0])


class Suite(unittest.TestCase):
    """`server` is there for the whole class; it must still live, and end well, when the class is done, and have counted
    all of it in the series that it began with."""

    server_options = ()
    environment = None
    server = first_series = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.server_options, environment=cls.environment)
        cls.first_series = cls.server.fixed_series()

    @classmethod
    def tearDownClass(cls):
        lived = cls.server.alive()
        changed = cls.server.fixed_series() ^ cls.first_series if lived and cls.first_series else ()
        code = cls.server.stop()
        tail = "".join(cls.server.log[-10:])
        cls.server.remove()
        assert lived, "the server died:\n" + tail
        assert code == 0, f"the server ended with {code}:\n" + tail
        assert not changed, f"series that came or went: {sorted(changed)}"


def postgres_program(name):
    """The program itself before what a distribution puts on PATH to choose among versions; None where there is none."""
    return next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None) or shutil.which(name)


def postgres_is_here():
    return postgres_program("initdb")


def main(module, needs_server=True):
    global options, contract
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvrun", default="")
    parser.add_argument("--kv-verify", default="")
    parser.add_argument("--source", default=str(pathlib.Path(__file__).resolve().parents[2]))
    parser.add_argument("--prism", help="program of the validating proxy that calls go through")
    parser.add_argument("--jobs", help="of the runner; a suite is one job")
    parser.add_argument("-k", action="append", help="only tests whose name has this in it")
    options = parser.parse_args()
    if needs_server and not os.access(options.kvrun, os.X_OK):
        print("there is no server binary; give it with --kvrun", file=sys.stderr)
        sys.exit(SKIP)
    if options.prism and not os.access(options.prism, os.X_OK):
        print("the proxy is not there: tests/spec/fetch.sh brings it", file=sys.stderr)
        sys.exit(SKIP)
    if needs_server and not postgres_is_here():
        print("PostgreSQL's programs are not installed", file=sys.stderr)
        sys.exit(SKIP)
    contract = Contract(options.source)
    argv = [module] + [word for name in options.k or [] for word in ("-k", name)]
    unittest.main(module=module, argv=argv, verbosity=1)
