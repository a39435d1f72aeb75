"""The server under test as a process, its interface as a client, and a PostgreSQL that outlives the server.

Knows nothing about what is expected of the server; must never end a process that it did not start.
"""
import http.client
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

START_SECONDS = 60
ANSWER_SECONDS = 30


class Gone(Exception):
    """The server does not answer any more."""


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __str__(self):
        return f"{self.status} {self.body[:300]!r}"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=ANSWER_SECONDS)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Client:
    """One connection; not for two threads at once."""

    def __init__(self, path, token):
        self.path, self.token, self.connection = path, token, None

    def call(self, method, target, body=None, **headers):
        sent = {"Authorization": "Bearer " + self.token, "Connection": "keep-alive"}
        sent.update({name.replace("_", "-"): value for name, value in headers.items()})
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            if self.connection is None:
                self.connection = UnixConnection(self.path)
            self.connection.request(method, target, None if body is None else json.dumps(body), sent)
            answer = self.connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Gone(f"{method} {target}: {error!r}") from error

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def wait_until(condition, seconds, what):
    """Until `condition` is true; its value. A wait has an end that fails the run."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.01)


class Server:
    """One state folder, and at most one process on it at a time."""

    def __init__(self, program, folder, options, db_url=None, environment=None):
        self.program, self.folder, self.state = program, folder, os.path.join(folder, "s")
        self.environment = environment or {}
        self.options = options + (["--db.url=" + db_url, "--db.migrate=auto"] if db_url else [])
        self.db_url, self.process, self.starts = db_url, None, 0
        self.socket = self.fd_socket = None  # known when it is ready

    @property
    def log_path(self):
        return os.path.join(self.folder, f"log.{self.starts}")

    def spawn(self, fault=None, under=()):
        """Starts it, by a program that is given its command, and does not wait for it."""
        self.starts += 1
        self.fault = fault or ""
        environment = {k: v for k, v in os.environ.items() if k not in ("KVRUN_FAULT", "KV_LONG")}
        environment.update(self.environment)
        if fault:
            environment["KVRUN_FAULT"] = fault
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*under, self.program, "serve", "--state.dir=" + self.state, "--http.listen=127.0.0.1:0",
                 "--http.admin_listen=127.0.0.1:0"] + self.options,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def is_ready(self):
        if self.process.poll() is not None:
            raise Gone(f"the server ended while it started: {self.process.returncode}\n{self.log_tail()}")
        with open(self.log_path, "rb") as log:
            found = re.search(rb'"event":"ready".*"socket":"([^"]+)"', log.read())
        if found:
            self.socket = found.group(1).decode()
            self.fd_socket = os.path.join(os.path.dirname(self.socket), "engine-fd.sock")
        return found

    def wait_ready(self):
        wait_until(self.is_ready, START_SECONDS, "the server's start")

    def start(self, fault=None):
        self.spawn(fault)
        self.wait_ready()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def wait_dead(self, seconds):
        try:
            self.process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def stop(self):
        """Orderly; its exit status, in which a sanitizer's complaint shows."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(ANSWER_SECONDS)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def log_tail(self, lines=12):
        with open(self.log_path, "r", errors="replace") as log:
            return "".join(log.readlines()[-lines:])

    def operator_key(self):
        with open(os.path.join(self.state, "operator.key")) as file:
            return file.read().strip()

    def database_host(self):
        if self.db_url:
            return dict(part.split("=", 1) for part in self.db_url.split())["host"]
        with open(os.path.join(self.state, "postgres.socket")) as file:
            return file.read().strip()

    def forget_sockets(self):
        """A killed server leaves its private database's socket folder for the next start, and there is none."""
        try:
            with open(os.path.join(self.state, "postgres.socket")) as file:
                shutil.rmtree(file.read().strip(), ignore_errors=True)
        except FileNotFoundError:
            pass

    def database_name(self):
        return dict(part.split("=", 1) for part in self.db_url.split())["dbname"] if self.db_url else "postgres"

    def sql(self, text):
        """What psql answers, a line a row, with | between columns."""
        command = [postgres_program("psql"), "-h", self.database_host(), "-U", "kvrun", "-d", self.database_name(),
                   "-v", "ON_ERROR_STOP=1", "-qAt", "-c", text]
        return subprocess.run(command, capture_output=True, text=True, check=True, **database_user()).stdout.strip()

    def dump(self, target):
        """What somebody has who gets at a backup of the database."""
        name, user = self.database_name(), database_user()
        with open(target, "wb") as file:
            subprocess.run([postgres_program("pg_dump"), "-h", self.database_host(), "-U", "kvrun", name], stdout=file,
                           check=True, **user)


def database_user():
    """PostgreSQL refuses root, and so does a socket folder of another user."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam("postgres")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def postgres_program(name):
    found = shutil.which(name)
    base = "/usr/lib/postgresql"
    for version in sorted(os.listdir(base), key=lambda v: -int(v) if v.isdigit() else 0) if os.path.isdir(base) else []:
        path = os.path.join(base, version, "bin", name)
        if os.access(path, os.X_OK):
            return path
    if not found:
        raise FileNotFoundError(name)
    return found


class Cluster:
    """A PostgreSQL that outlives the server, with the durability it has in earnest: it is killed, too."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="kvcrash-pg.")
        user = database_user()
        if user:
            os.chown(self.folder, user["user"], user["group"])
        self.data, self.process = os.path.join(self.folder, "data"), None
        subprocess.run([postgres_program("initdb"), "-D", self.data, "-U", "kvrun", "--auth=trust", "--no-sync",
                        "--no-instructions", "-E", "UTF8", "--locale=C"], check=True, stdout=subprocess.DEVNULL, **user)
        self.start()

    def start(self):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [postgres_program("postgres"), "-D", self.data, "-c", "listen_addresses=", "-c",
                 "unix_socket_directories=" + self.folder, "-c", "shared_buffers=32MB", "-c", "max_connections=80"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **database_user())
        wait_until(lambda: self.sql("SELECT 1"), START_SECONDS, "PostgreSQL's start")

    def sql(self, text):
        command = [postgres_program("psql"), "-h", self.folder, "-U", "kvrun", "-d", "postgres", "-qAt", "-c", text]
        run = subprocess.run(command, capture_output=True, **database_user())
        return run.returncode == 0

    def database(self, name):
        if not self.sql(f"CREATE DATABASE {name}"):
            raise RuntimeError("cannot make a database")
        return f"host={self.folder} user=kvrun dbname={name} connect_timeout=2"

    def crash(self):
        """Immediate: no checkpoint, so the next start replays what was written ahead."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(ANSWER_SECONDS)

    def remove(self):
        if self.process.poll() is None:
            self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)
