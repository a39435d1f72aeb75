"""A PostgreSQL that belongs to a test, on a TCP port, and PgBouncer in front of it: for what a private database cannot
show. Both end with the test; PostgreSQL's own user is used when the test runs as root, as neither would start else."""
import atexit
import glob
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile

from rig import free_port, wait_for


def programs():
    """The folder of the newest PostgreSQL, or None."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda path: int(path.split("/")[4]))
    if found:
        return os.path.dirname(found[-1])
    return os.path.dirname(os.path.realpath(shutil.which("initdb"))) if shutil.which("initdb") else None


def pgbouncer():
    return shutil.which("pgbouncer") or next(iter(glob.glob("/usr/sbin/pgbouncer")), None)


def user():
    """Whom PostgreSQL runs as: options for subprocess."""
    if os.getuid() != 0:
        return {}
    entry = pwd.getpwnam("postgres")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


class Postgres:
    def __init__(self):
        self.bin = programs()
        self.folder = tempfile.mkdtemp(prefix="kvpg.")
        self.port = free_port()
        self.process = None
        atexit.register(self.remove)
        if user():
            os.chown(self.folder, user()["user"], user()["group"])
        self.data = os.path.join(self.folder, "data")
        subprocess.run([f"{self.bin}/initdb", "-D", self.data, "-U", "kvrun", "--auth=trust", "-E", "UTF8", "--locale=C",
                        "--no-sync", "--no-instructions"], check=True, cwd=self.folder, stdout=subprocess.DEVNULL, **user())
        self.start()

    @property
    def url(self):
        return f"host=127.0.0.1 port={self.port} user=kvrun dbname=postgres"

    def start(self):
        log = open(os.path.join(self.folder, "log"), "ab")
        self.process = subprocess.Popen(
            [f"{self.bin}/postgres", "-D", self.data, "-p", str(self.port), "-c", "listen_addresses=127.0.0.1",
             "-c", f"unix_socket_directories={self.folder}", "-c", "fsync=off", "-c", "shared_buffers=32MB"],
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **user())
        log.close()
        wait_for("PostgreSQL", self.is_ready, 120)

    def is_ready(self):
        return subprocess.run([f"{self.bin}/pg_isready", "-q", "-d", self.url], check=False).returncode == 0

    def stop(self, how=signal.SIGINT):
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def sql(self, text, database="postgres"):
        url = self.url.replace("dbname=postgres", "dbname=" + database)
        done = subprocess.run([f"{self.bin}/psql", "-XAtq", "-v", "ON_ERROR_STOP=1", url, "-c", text], check=True,
                              capture_output=True, text=True)
        return done.stdout.strip()

    def file(self, path):
        """A whole file of SQL in one transaction."""
        subprocess.run([f"{self.bin}/psql", "-Xq1", "-v", "ON_ERROR_STOP=1", self.url, "-f", str(path)], check=True,
                       capture_output=True, text=True)

    def remove(self):
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


class Pooler:
    """PgBouncer as it comes, but in transaction mode and with fewer servers than this program has connections."""

    def __init__(self, postgres, servers=3):
        self.folder = tempfile.mkdtemp(prefix="kvpb.")
        self.port = free_port()
        atexit.register(self.remove)
        users = pathlib.Path(self.folder, "users")
        users.write_text('"kvrun" ""\n', encoding="ascii")
        settings = pathlib.Path(self.folder, "pgbouncer.ini")
        settings.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={postgres.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {users}\n"
            f"pool_mode = transaction\ndefault_pool_size = {servers}\n", encoding="ascii")
        if user():
            for path in (self.folder, users, settings):
                os.chown(path, user()["user"], user()["group"])
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen([pgbouncer(), "-q", str(settings)], cwd=self.folder, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, **user())
        wait_for("PgBouncer", lambda: answers(self.port))

    @property
    def url(self):
        return f"host=127.0.0.1 port={self.port} user=kvrun dbname=postgres"

    def remove(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
            self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)
