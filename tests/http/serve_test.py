"""A server's life as the service manager, the orchestrator and the operator see it: what it tells, how it reloads, how
it ends."""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import postgres
import rig


class Manager:
    """A service manager's socket."""

    def __init__(self, abstract=False):
        self.folder = tempfile.mkdtemp(prefix="kvn.")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.name = f"@kvrun-test-{os.getpid()}-{id(self)}" if abstract else os.path.join(self.folder, "notify")
        self.socket.bind("\0" + self.name[1:] if abstract else self.name)
        self.socket.settimeout(0.2)
        self.heard = []

    def listen(self):
        try:
            while True:
                self.heard.append(self.socket.recv(4096).decode())
        except TimeoutError:
            return self.heard

    def wait_for(self, what, since=0):
        return rig.wait_for(what, lambda: [m for m in self.listen()[since:] if what in m.split("\n")])

    def close(self):
        self.socket.close()
        for name in os.listdir(self.folder):
            os.unlink(os.path.join(self.folder, name))
        os.rmdir(self.folder)


class Notify(unittest.TestCase):
    def with_manager(self, abstract, *extra, **environment):
        manager = Manager(abstract)
        self.addCleanup(manager.close)
        server = rig.Server(*extra, environment={"NOTIFY_SOCKET": manager.name, **environment})
        self.addCleanup(server.remove)
        return manager, server

    def test_a_whole_life(self):
        manager, server = self.with_manager(False)
        ready = manager.wait_for("READY=1")[0]
        self.assertIn(f"STATUS=serving on port {server.port}", ready.split("\n"))
        self.assertEqual(server.call("GET", "/readyz").status, 200)
        since = len(manager.listen())
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        server.process.send_signal(signal.SIGHUP)
        reloading = manager.wait_for("RELOADING=1", since)[0]
        at = int(dict(line.split("=", 1) for line in reloading.split("\n"))["MONOTONIC_USEC"])
        self.assertTrue(before <= at <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        manager.wait_for("READY=1", since)
        self.assertEqual(server.stop(), 0)
        self.assertTrue([m for m in manager.listen() if m.startswith("STOPPING=1")])
        self.assertFalse([m for m in manager.heard if "WATCHDOG=1" in m], "nobody asked for signs of life")

    def test_abstract_address(self):
        manager, _ = self.with_manager(True)
        manager.wait_for("READY=1")

    def test_signs_of_life(self):
        manager, server = self.with_manager(False, WATCHDOG_USEC="1000000")
        manager.wait_for("READY=1")
        rig.wait_for("several", lambda: [m for m in manager.listen() if m == "WATCHDOG=1"][2:])
        self.assertEqual(server.stop(), 0)

    def test_signs_of_life_meant_for_another_process_are_not_given(self):
        manager, server = self.with_manager(False, WATCHDOG_USEC="200000", WATCHDOG_PID="1")
        manager.wait_for("READY=1")
        server.process.send_signal(signal.SIGHUP)
        manager.wait_for("RELOADING=1")
        self.assertEqual([m for m in manager.listen() if m == "WATCHDOG=1"], [])

    def test_without_life_no_sign(self):
        manager, server = self.with_manager(False, WATCHDOG_USEC="200000", KVRUN_FAULT="service/alive=dead")
        manager.wait_for("READY=1")
        since = len(server.log)
        server.process.send_signal(signal.SIGUSR1)
        status = rig.wait_for("a status", lambda: [json.loads(line) for line in server.log[since:]
                                                   if '"event":"status"' in line])[0]
        if status["alive"]:
            self.skipTest("a release build has no fault points")
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            manager.listen()
        self.assertEqual([m for m in manager.heard if m == "WATCHDOG=1"], [])

    def test_a_manager_that_is_not_there_does_no_harm(self):
        server = rig.Server(environment={"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "200000"})
        self.addCleanup(server.remove)
        self.assertEqual(server.call("GET", "/readyz").status, 200)
        self.assertEqual(server.stop(), 0)


class Reload(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="kvr.")
        cls.file = pathlib.Path(cls.folder.name, "kvrun.conf")
        cls.file.write_text("log.level = info\nrate.default = 500\n", encoding="ascii")
        cls.server = rig.Server("--config", str(cls.file))

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.server.remove()
        cls.folder.cleanup()

    def reload(self, text):
        """Writes the file, and what the log says until the reload's end."""
        since = len(self.server.log)
        self.file.write_text(text, encoding="ascii")
        self.server.process.send_signal(signal.SIGHUP)

        def ended():
            lines = [json.loads(line) for line in self.server.log[since:]]
            return lines if any(line["event"] in ("config-reloaded", "config-not-reloaded") for line in lines) else None

        return rig.wait_for("the end of the reload", ended)

    def waits(self, number):
        """Whether a signal to the process was not taken yet."""
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as status:
            masks = dict(line.rstrip().split(":\t") for line in status if line.startswith(("SigPnd", "ShdPnd")))
        return any(int(mask, 16) & (1 << (number - 1)) for mask in masks.values())

    def keys(self, lines, event):
        return [line["key"] for line in lines if line["event"] == event]

    def test_reload(self):
        lines = self.reload("log.level = info\nrate.default = 400\nservice.threads = 9\n")
        self.assertEqual(self.keys(lines, "config-changed"), ["rate.default"])
        self.assertEqual(self.keys(lines, "config-needs-a-restart"), ["service.threads"])
        lines = self.reload("log.level = info\nrate.default = 400\nnonsense\n")
        refused = [line for line in lines if line["event"] == "config-not-reloaded"]
        self.assertIn("line 3", refused[0]["text"])
        self.assertEqual(self.server.call("GET", "/readyz").status, 200)
        lines = self.reload("log.level = error\nrate.default = 400\n")
        self.assertEqual(self.keys(lines, "config-changed"), ["log.level"])
        lines = self.server.log[:]
        self.server.process.send_signal(signal.SIGUSR1)  # an info line, which the level now holds back
        # Of two that wait the kernel hands out SIGHUP first, whichever came first.
        rig.wait_for("the signal to be taken", lambda: not self.waits(signal.SIGUSR1))
        self.file.write_text("log.level = info\n", encoding="ascii")
        self.server.process.send_signal(signal.SIGHUP)
        rig.wait_for("the level's return", lambda: [x for x in self.server.log[len(lines):] if "config-reloaded" in x])
        self.assertFalse([x for x in self.server.log[len(lines):] if '"event":"status"' in x])


class End(unittest.TestCase):
    def test_readiness_goes_first_and_requests_are_still_served(self):
        server = rig.Server("--shutdown.delay=8s")
        self.addCleanup(server.remove)
        server.process.send_signal(signal.SIGTERM)
        rig.wait_for("readyz to say no", lambda: server.call("GET", "/readyz").status == 503)
        self.assertIn("[-]shutdown", server.call("GET", "/readyz").body.decode())
        self.assertEqual(server.call("GET", "/livez").status, 200)
        self.assertEqual(server.call("GET", "/v1/tiers", server.operator).status, 200)
        self.assertEqual(server.process.wait(30), 0)

    def test_a_second_signal_ends_it_at_once(self):
        server = rig.Server("--shutdown.delay=60s")
        self.addCleanup(server.remove)
        server.process.send_signal(signal.SIGTERM)
        rig.wait_for("readyz to say no", lambda: server.call("GET", "/readyz").status == 503)
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(50), 128 + signal.SIGTERM)
        self.assertLess(time.monotonic() - begun, 40)

    def test_what_the_grace_was_too_short_for_is_named(self):
        database = postgres.Postgres()
        self.addCleanup(database.remove)
        server = rig.Server(f"--db.url={database.url}", "--shutdown.grace=0s", "--db.lock_timeout=5s")
        self.addCleanup(server.remove)
        holder = subprocess.Popen([f"{database.bin}/psql", "-XAtq", database.url, "-c",
                                   "BEGIN; LOCK TABLE kvrun.tenant; SELECT 'held'; SELECT pg_sleep(60)"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (holder.kill(), holder.wait()))
        rig.wait_for("the lock", lambda: database.sql("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock'"
                                                      " AND relation = 'kvrun.tenant'::regclass AND granted") == "1")

        def slow():
            try:
                server.call("POST", "/v1/tenants", server.operator, {"name": "too-late"}, {"X-Request-Id": "cut-me"})
            except (OSError, http.client.HTTPException):
                pass  # it was cut off

        caller = threading.Thread(target=slow)
        caller.start()
        rig.wait_for("the request", lambda: database.sql(
            "SELECT count(*) FROM pg_locks WHERE relation = 'kvrun.tenant'::regclass AND NOT granted") != "0")
        self.assertEqual(server.stop(), 1)
        caller.join(30)
        cut = [json.loads(line) for line in server.log if '"event":"cut-off"' in line]
        self.assertEqual([(line["method"], line["route"]) for line in cut], [("POST", "/v1/tenants")])
        self.assertTrue(cut[0]["request_id"])

    def test_the_end_is_recorded(self):
        database = postgres.Postgres()
        self.addCleanup(database.remove)
        server = rig.Server(f"--db.url={database.url}")
        self.addCleanup(server.remove)
        before = int(database.sql("SELECT count(*) FROM kvrun.audit_leaf"))
        self.assertEqual(server.stop(), 0)
        self.assertEqual(database.sql("SELECT count(*) FROM kvrun.audit_outbox"), "0", "nothing is left to ship")
        self.assertGreater(int(database.sql("SELECT count(*) FROM kvrun.audit_leaf")), before)
        self.assertEqual(database.sql("SELECT count(*) FROM kvrun.instance WHERE lease_until > now()"), "0")

    def test_as_the_first_process_it_reaps_and_ends(self):
        """PID 1 of a namespace: orphans are its children, and the kernel spares it the default action of signals."""
        if subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False,
                          capture_output=True).returncode != 0:
            self.skipTest("no PID namespace can be made here")
        folder = tempfile.mkdtemp(prefix="kv1.")
        script = ('sh -c "sh -c \'sleep 0.3; exit 3\' & exec sleep 0.1" & '  # leaves an orphan behind
                  f'exec {rig.options.kvrun} serve --state.dir={folder}/state --http.listen=127.0.0.1:0 '
                  '--http.admin_listen=127.0.0.1:0 --shutdown.delay=60s --tiers.dram.bytes=64MiB')
        process = subprocess.Popen(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script],
                                   stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=folder,
                                   stdin=subprocess.DEVNULL)
        self.addCleanup(lambda: subprocess.run(["rm", "-rf", folder], check=False))
        log, ready = [], threading.Event()

        def read():
            for line in process.stderr:
                log.append(line)
                if '"ready"' in line:
                    ready.set()
            ready.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self.assertTrue(ready.wait(60), log)
        child = int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])

        def zombies():
            found = []
            for pid in pathlib.Path(f"/proc/{child}/task/{child}/children").read_text().split():
                try:
                    if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                        found.append(pid)
                except FileNotFoundError:
                    pass
            return found

        rig.wait_for("every orphan's burial", lambda: not zombies())
        os.kill(child, signal.SIGTERM)
        rig.wait_for("the stop's begin", lambda: [line for line in log if '"signal"' in line])
        os.kill(child, signal.SIGTERM)
        self.assertEqual(process.wait(30), 128 + signal.SIGTERM)
        reader.join(10)
        process.stderr.close()


class Dev(unittest.TestCase):
    def start(self, folder):
        """kvrun dev, ready, and what it printed until then."""
        out, log = open(os.path.join(folder, "out"), "w+b"), open(os.path.join(folder, "log"), "w+b")
        self.addCleanup(out.close)
        self.addCleanup(log.close)
        process = subprocess.Popen([rig.options.kvrun, "dev", "--http.listen=127.0.0.1:0", "--http.admin_listen=127.0.0.1:0",
                                    "--tiers.nvme.bytes=64MiB", "--tiers.dram.bytes=64MiB"], cwd=folder,
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=log)

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()

        self.addCleanup(end)

        def read(file):
            return pathlib.Path(folder, file).read_text(encoding="utf-8")

        rig.wait_for("dev to be ready", lambda: process.poll() is not None or "operator key: " in read("out"), 90)
        self.assertIsNone(process.poll(), read("log"))
        started = [json.loads(line) for line in read("log").splitlines() if '"private_cluster_started"' in line]
        return process, read("out"), started[0]

    def folder(self):
        folder = tempfile.mkdtemp(prefix="kvd.")
        os.chmod(folder, 0o711)
        self.addCleanup(lambda: subprocess.run(["rm", "-rf", folder], check=False))
        return folder

    def test_a_start_says_what_it_is_at(self):
        folder = self.folder()
        for first in ("creating the database, the first time only", "starting the database"):
            process, out, _ = self.start(folder)
            told = [line for line in out.splitlines() if line.startswith("kvrun dev: ")]
            self.assertEqual(told, [f"kvrun dev: {first} ...", "kvrun dev: bringing the schema up to date, opening keys and tiers ..."])
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(60), 0)

    def test_a_signal_ends_it_when_database_and_folder_are_gone(self):
        folder = self.folder()
        process, _, started = self.start(folder)
        os.kill(started["pid"], signal.SIGKILL)
        subprocess.run(["rm", "-rf", started["folder"], os.path.join(folder, "kvrun-dev")], check=True)
        rig.wait_for("its notice", lambda: '"database-revived"' in pathlib.Path(folder, "log").read_text(encoding="utf-8"), 60)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)


class Database(unittest.TestCase):
    def test_without_one_it_says_what_to_do_and_exits_2(self):
        port = postgres.free_port()
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            done = subprocess.run([rig.options.kvrun, "serve", f"--state.dir={folder}/state", "--http.listen=127.0.0.1:0",
                                   "--http.admin_listen=127.0.0.1:0", "--tiers.dram.bytes=64MiB", "--db.start_wait=2s",
                                   f"--db.url=host=127.0.0.1 port={port} user=kvrun password=hunter2"],
                                  capture_output=True, text=True, timeout=120, check=False, cwd=folder)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertLess(time.monotonic() - begun, 55)
            self.assertRegex(done.stderr, r"(?m)^kvrun: no PostgreSQL answered at db\.url within 2 s: start it there")
            self.assertNotIn("hunter2", done.stderr)
            events = [json.loads(line)["event"] for line in done.stderr.splitlines() if line.startswith("{")]
            self.assertIn("waiting-for-database", events)
            self.assertNotIn("opening-tiers", events, "before the database answered, no memory is taken hold of")

    def test_started_before_its_database(self):
        database = postgres.Postgres()
        self.addCleanup(database.remove)
        database.stop()
        port, admin = postgres.free_port(), postgres.free_port()
        started = []

        def start():
            started.append(rig.Server(f"--db.url={database.url}", f"--http.listen=127.0.0.1:{port}",
                                      f"--http.admin_listen=127.0.0.1:{admin}", "--db.start_wait=60s"))

        thread = threading.Thread(target=start)
        thread.start()

        def probe(path):
            try:
                with socket.create_connection(("127.0.0.1", admin), 5) as sock:
                    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                    return sock.makefile("rb").readline().split()[1]
            except (OSError, IndexError):
                return None

        rig.wait_for("the probe", lambda: probe("/livez") == b"200")
        self.assertEqual(probe("/readyz"), b"503")
        self.assertEqual(probe("/startupz"), b"503")
        database.start()
        thread.join(60)
        server = started[0]
        self.addCleanup(server.remove)
        rig.wait_for("readiness", lambda: probe("/readyz") == b"200")
        self.assertTrue(server.tenant("later"))

    def test_a_check_tries_what_a_start_would_need(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()

            def check(*flags):
                done = subprocess.run([rig.options.kvrun, "config", "check", f"--state.dir={folder}/state",
                                       "--http.listen=127.0.0.1:0", "--http.admin_listen=127.0.0.1:0", *flags],
                                      capture_output=True, text=True, timeout=30, check=False, cwd=folder)
                return done.returncode, done.stdout

            code, text = check()
            self.assertEqual(code, 0, text)
            self.assertTrue(text.endswith("configuration ok\n"), text)
            code, text = check(f"--http.listen=127.0.0.1:{taken.getsockname()[1]}")
            self.assertEqual(code, 0)
            self.assertRegex(text, r"(?m)^warn  http\.listen .*in use")
            for flag, line in (("--http.listen=nowhere", r"^fail  http\.listen "),
                               ("--http.listen=0.0.0.0:0", r"^fail  http\.listen .*not loopback and has no TLS"),
                               ("--http.tls.cert_file=/nonexistent/x", r"^fail  http\.tls\.cert_file .*cannot be read"),
                               ("--http.listen=192.0.2.1:1", r"^fail  http\.listen "),
                               (f"--db.url=host=127.0.0.1 port={postgres.free_port()}", r"^fail  db\.url .*no PostgreSQL"),
                               ("--db.url=:::", r"^fail  db\.url "),
                               (f"--anchor.file={folder}/none", r"^fail  anchor\.file .*empty file"),
                               ("--state.dir=/dev/null/kvrun", r"^fail  state\.dir .*no folder")):
                code, text = check(flag)
                self.assertEqual(code, 1, text)
                self.assertRegex(text, "(?m)" + line)
            with tempfile.NamedTemporaryFile(dir=folder) as beside, tempfile.NamedTemporaryFile(dir="/dev/shm") as apart:
                self.assertRegex(check(f"--anchor.file={beside.name}")[1], r"(?m)^warn  anchor\.file ")
                self.assertRegex(check(f"--anchor.file={apart.name}")[1], r"(?m)^ok    anchor\.file ")
            self.assertEqual(os.listdir(folder), [], "a check leaves nothing behind")


if __name__ == "__main__":
    rig.main(__name__)
