"""The image, built and run for real: any user, a root file system that is only read, no capabilities.

Needs root and buildah, podman, runc, mmdebstrap and PostgreSQL's programs; exits with 77 where one is missing.
"""
import contextlib
import glob
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
TAG = "localhost/kvrun-test:latest"
STORE = None  # where images and containers lie


def podman(*words, check=True, timeout=120):
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=timeout, env=environment())
    if check and done.returncode != 0:
        raise AssertionError(f"podman {' '.join(words[:3])}: {done.returncode} {done.stderr[-800:]}")
    return done


def environment():
    return {**os.environ, "CONTAINERS_CONF": f"{STORE}/containers.conf", "CONTAINERS_STORAGE_CONF": f"{STORE}/storage.conf"}


def free_port():
    """None of those that the system hands to callers (tests/http/rig.py)."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10000, first) if first > 11000 else 0
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return probe.getsockname()[1]


def wait_for(what, condition, seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s for {what}")


class Postgres:
    """A throw-away cluster on the loopback address, as the host's database."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="kvc-pg.")
        self.bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        self.port = free_port()
        shutil.chown(self.folder, "postgres")
        self.run("initdb", "-D", f"{self.folder}/data", "-U", "kvrun", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
        self.run("pg_ctl", "-D", f"{self.folder}/data", "-w", "-s", "-l", f"{self.folder}/log", "-o",
                 f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self.folder} -c fsync=off", "start")
        self.count = 0

    def database(self):
        """A fresh one: a state folder belongs to one database."""
        self.count += 1
        self.run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "kvrun", f"kvrun{self.count}")
        return f"postgresql://kvrun@127.0.0.1:{self.port}/kvrun{self.count}"

    def run(self, program, *words):
        subprocess.run(["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--reset-env", f"{self.bin}/{program}", *words],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            self.run("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "-s", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)


class Container:
    """`kvrun serve` as a user that exists nowhere, with nothing but its two folders to write to."""

    def __init__(self, url, *extra, command=("serve",), options=()):
        self.name = f"kvrun-test-{random.randrange(1 << 32):08x}"
        self.folder = tempfile.mkdtemp(prefix="kvc.")
        self.user = random.randrange(20000, 60000)
        self.port, self.admin = free_port(), free_port()
        secret = pathlib.Path(self.folder, "db_url")
        secret.write_text((url or "") + "\n")
        secret.chmod(0o600)
        state = pathlib.Path(self.folder, "state")
        state.mkdir(mode=0o700)
        for path in (self.folder, secret, state):
            os.chown(path, self.user, self.user)
        self.begun = time.monotonic()
        podman("run", "--detach", "--name", self.name, "--network", "host", "--read-only", "--cap-drop=all",
               "--security-opt", "no-new-privileges", "--user", f"{self.user}:{self.user}", "--memory", "768m",
               "--tmpfs", "/run/kvrun:mode=1777", "--volume", f"{state}:/var/lib/kvrun", "--volume", f"{secret}:/run/secrets/db_url:ro",
               *(("--env", "KVRUN_DB_URL_FILE=/run/secrets/db_url") if url else ()), "--env", f"KVRUN_HTTP_LISTEN=127.0.0.1:{self.port}",
               "--env", f"KVRUN_HTTP_ADMIN_LISTEN=127.0.0.1:{self.admin}", "--env", "KVRUN_TIERS_NVME_BYTES=64MiB",
               "--env", "KVRUN_TIERS_DRAM_BYTES=64MiB", "--env", "KVRUN_RATE_DEFAULT=1000000", "--env", "KVRUN_DB_MIGRATE=auto",
               "--env", "KVRUN_HTTP_SOCKET=/run/kvrun/engine.sock",
               *options, TAG, *command, *extra)

    def call(self, method, path, token=None, body=None, admin=False, timeout=10):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin if admin else self.port, timeout=timeout)
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def answers(self, path):
        try:
            return self.call("GET", path, admin=True, timeout=2)[0] == 200
        except OSError:
            return False

    def ready(self, seconds=120):
        wait_for("the container to be ready; its log:\n" + self.log(), lambda: self.answers("/readyz"), seconds)
        return time.monotonic() - self.begun

    def operator(self):
        return pathlib.Path(self.folder, "state", "operator.key").read_text().strip()

    def log(self):
        done = podman("logs", self.name, check=False)
        return done.stdout[-3000:] + done.stderr[-3000:]

    def exit_code(self, seconds=60):
        return int(podman("wait", self.name, timeout=seconds).stdout.strip())

    def remove(self):
        podman("rm", "--force", "--time", "5", self.name, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.postgres = Postgres()

    @classmethod
    def tearDownClass(cls):
        cls.postgres.stop()

    def setUp(self):
        self.containers = []

    def tearDown(self):
        for container in self.containers:
            container.remove()

    def start(self, *extra, **how):
        url = how.pop("url") if "url" in how else self.postgres.database()
        container = Container(url, *extra, **how)
        self.containers.append(container)
        return container

    def test_configuration_of_the_image(self):
        config = json.loads(podman("image", "inspect", TAG).stdout)[0]["Config"]
        self.assertEqual(config["User"], "10001:10001")
        self.assertEqual(config["Entrypoint"], ["/usr/bin/kvrun"])
        self.assertEqual(config["StopSignal"], "SIGTERM")
        probe = json.loads(podman("image", "inspect", "--format", "{{json .HealthCheck}}", TAG, check=False).stdout or "null")
        probe = probe or config.get("Healthcheck")
        self.assertEqual(probe["Test"], ["CMD", "/usr/bin/kvrun", "healthcheck"])

    def test_healthy_within_two_seconds_as_any_user(self):
        container = self.start()
        container.ready()  # the first start makes the schema, too
        tries = []
        while len(tries) < 5 and not any(took < allowed for took, allowed in tries):  # others may be at work just then
            podman("stop", "--time", "20", container.name)
            container.begun = time.monotonic()
            podman("start", container.name)
            tries.append((container.ready(), 2.0 * slowness()))
        self.assertTrue(any(took < allowed for took, allowed in tries), f"time to ready, and what is allowed here: {tries}")
        self.assertEqual(podman("healthcheck", "run", container.name, check=False).returncode, 0)
        status = podman("exec", container.name, "/usr/bin/kvrun", "version").stdout
        self.assertIn("kvrun ", status)
        for path in ("/usr/include/kvrun.h", "/usr/lib/libkvrun.so.0", "/usr/share/kvrun/kvrun.py"):  # for images of engines
            podman("exec", container.name, "/usr/bin/test", "-f", path)
        self.assertNotEqual(podman("exec", container.name, "/usr/bin/test", "-f", "/usr/none", check=False).returncode, 0)

    def test_nothing_outside_the_two_folders_is_written(self):
        container = self.start()
        container.ready()
        changed = podman("diff", container.name).stdout.splitlines()
        self.assertEqual([line for line in changed if line != "C /etc"], [])  # there podman itself puts hosts and resolv.conf
        # The control: the root file system really cannot be written to.
        denied = podman("exec", container.name, "/usr/bin/kv-verify", "--help", check=False)
        self.assertIn(denied.returncode, (0, 2))
        info = json.loads(podman("inspect", container.name).stdout)[0]
        self.assertTrue(info["HostConfig"]["ReadonlyRootfs"])
        self.assertFalse(info["EffectiveCaps"])

    def test_a_session_is_made_and_erased_with_a_certificate(self):
        container = self.start()
        container.ready()
        tenant = json.loads(container.call("POST", "/v1/tenants", container.operator(), {"name": "in-a-container"})[1])["id"]
        key = json.loads(container.call("POST", f"/v1/tenants/{tenant}/api-keys", container.operator(),
                                        {"name": "k", "roles": ["tenant_admin"]})[1])["secret"]
        session = json.loads(container.call("POST", "/v1/sessions", key, {"model": {"id": "m", "revision": "r"}})[1])["id"]
        connection = http.client.HTTPConnection("127.0.0.1", container.port, timeout=20)
        connection.request("POST", "/v1/erasures", json.dumps({"scope": {"session_id": session}}),
                           {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Prefer": "wait=15"})
        answer = json.loads(connection.getresponse().read())
        self.assertEqual(answer["state"], "certified")

    def test_io_uring_where_the_profile_allows_it_and_threads_where_it_does_not(self):
        engines = {}
        for name, options in {"ours": ("--security-opt", f"seccomp={SOURCE}/docker/seccomp.json"), "default": ()}.items():
            container = self.start(options=options)
            container.ready()
            engines[name] = json.loads(container.call("GET", "/version", admin=True)[1])["io_engine"]
            podman("stop", "--time", "20", container.name)
        self.assertEqual(engines, {"ours": "io_uring", "default": "threads"})

    def test_without_a_database_it_says_so_and_exits_two(self):
        container = self.start(url=f"postgresql://kvrun@127.0.0.1:{free_port()}/postgres", options=("--env", "KVRUN_DB_START_WAIT=2s"))
        self.assertEqual(container.exit_code(), 2)
        self.assertIn("db.url", container.log())

    def test_without_db_url_it_says_what_to_set_and_exits_two(self):
        container = self.start(url=None)
        self.assertEqual(container.exit_code(), 2)
        self.assertIn("db.url", container.log())

    def test_stop_under_load_drops_no_request(self):
        container = self.start()
        container.ready()
        token = container.operator()
        counts = {"answered": 0, "refused": 0}
        dropped, lock, stop = [], threading.Lock(), threading.Event()

        def load():
            while not stop.is_set():
                try:
                    with socket.create_connection(("127.0.0.1", container.port), timeout=10) as link:
                        link.sendall(f"GET /v1/tiers HTTP/1.1\r\nHost: kvrun\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n".encode())
                        data = b""
                        while chunk := link.recv(65536):
                            data += chunk
                except ConnectionRefusedError:
                    with lock:
                        counts["refused"] += 1
                    time.sleep(0.01)
                    continue
                except OSError as error:
                    data = repr(error).encode()
                with lock:
                    if re.match(rb"HTTP/1.1 (200|503) ", data):
                        counts["answered"] += 1
                    else:
                        dropped.append(data[:200])

        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_for("load", lambda: counts["answered"] > 200, 60)
        podman("stop", "--time", "30", container.name)
        wait_for("callers to be refused", lambda: counts["refused"] > 0, 60)
        stop.set()
        for thread in threads:
            thread.join()
        print(f"answered {counts['answered']}, dropped {len(dropped)}", file=sys.stderr)
        self.assertEqual(dropped, [])
        self.assertEqual(int(podman("inspect", "--format", "{{.State.ExitCode}}", container.name).stdout), 0)


def slowness():
    """How much slower than a quiet machine this one is now: the time of a container that does nothing."""
    begun = time.monotonic()
    podman("run", "--rm", "--network", "none", TAG, "version")
    return max(1.0, (time.monotonic() - begun) / 0.7)


def main():
    global STORE
    missing = [tool for tool in ("buildah", "podman", "runc", "mmdebstrap", "setpriv") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0 or not glob.glob("/usr/lib/postgresql/*/bin/initdb"):
        print(f"needs root, PostgreSQL and {', '.join(missing) or 'container tools'}", file=sys.stderr)
        return 77
    words = [word for word in sys.argv[1:] if word.startswith("--store=")]
    STORE = words[0].removeprefix("--store=") if words else tempfile.mkdtemp(prefix="kvc-store.")
    built = subprocess.run([HERE / "image.sh", STORE, TAG], capture_output=True, text=True)
    if built.returncode != 0:
        print("the image was not built:\n" + built.stdout[-2000:] + built.stderr[-4000:], file=sys.stderr)
        return 1
    kept = bool(words)
    names = [word for word in sys.argv[1:] if re.fullmatch(r"test_\w+", word)]
    suite = unittest.TestLoader().loadTestsFromNames([f"Image.{name}" for name in names], sys.modules[__name__]) if names else \
        unittest.TestLoader().loadTestsFromTestCase(Image)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if not kept:
        podman("rmi", "--all", "--force", check=False)
        shutil.rmtree(STORE, ignore_errors=True)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
