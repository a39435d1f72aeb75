"""What a debugger with every right finds in the memory of the real server: keys and blocks of sessions that live, none of
a session that was erased. The server is one of a build with fault points, which tells the keys it derives (KVRUN_TELL_KEYS).
"""
import errno
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "http"))

import rig
from engine import Engine, answered
from midstate import midstates

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
PIECE = 16
scanner = None


def id_of(text):
    """The 16 bytes of ses_… as hex."""
    value = 0
    for letter in text.split("_")[1]:
        value = value * 32 + ALPHABET.index(letter)
    return value.to_bytes(16, "big").hex()


def forms(name, secret):
    """A key as it lies about: itself, as the words of SHA-512, as HMAC's inner and outer key of both kinds, and as the states that
    HMAC keeps of these."""
    found = {}
    for at in range(0, len(secret) - PIECE + 1, PIECE):
        piece = secret[at:at + PIECE]
        for mask, label in ((0, ""), (0x36, ".ipad"), (0x5C, ".opad")):
            masked = bytes(byte ^ mask for byte in piece)
            found[masked] = f"{name}{label}"
            found[masked[7::-1] + masked[:7:-1]] = f"{name}{label}.words"
    for label, state in midstates(secret):
        for at in range(0, len(state), PIECE):
            found[state[at:at + PIECE]] = f"{name}.{label}"
    return found


class Needles(dict):
    """From the 16 bytes to a name."""

    def add(self, name, secret):
        self.update(forms(name, secret))
        return self

    def text(self):
        return "".join(f"{name} {piece.hex()}\n" for piece, name in self.items())


class Told:
    """The keys that the server told."""

    def __init__(self, path):
        self.path = path

    def lines(self):
        for line in pathlib.Path(self.path).read_text().splitlines():
            yield line.split(" ")

    def of(self, what, owner):
        return {key for kind, whose, key in self.lines() if kind == what and whose == owner}

    def session(self, session):
        """All that was derived for a session, by what it is."""
        identity, keys = id_of(session), {}
        keys["slot"] = self.of("slot", identity)
        keys["scope"] = self.of("scope", identity)
        for secret in keys["scope"]:
            for what in ("block", "ids", "meta"):
                keys.setdefault(what, set()).update(self.of(what, secret))
        for key in keys.get("block", ()):
            keys.setdefault("stream", set()).update(self.of("stream", key))
        return keys

    def nodes(self):
        """From the id of a node, a root too, to what seals it."""
        return {whose: (kind, key) for kind, whose, key in self.lines() if kind in ("node", "root", "wrapping")}


def scan(target, needles):
    """What of `needles` is in a process (its id) or in a file: name → places."""
    run = subprocess.run([scanner, str(target)], input=needles.text(), capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    hits, summary = {}, None
    for line in run.stdout.splitlines():
        words = line.split(" ")
        if words[0] == "hit":
            hits.setdefault(words[1], []).append(" ".join(words[2:]))
        else:
            summary = dict(zip(words[::2], map(int, words[1::2])))
    return hits, summary


class Base(rig.Suite):
    faults = ""

    @classmethod
    def more_environment(cls):
        return {}

    @classmethod
    def setUpClass(cls):
        # A key that is told is a line in a file of the test's; outside of the state folder, which the server looks through.
        cls.place = rig.tempfile.mkdtemp(prefix="kvtold.")
        cls.told = Told(os.path.join(cls.place, "keys"))
        cls.environment = {"KVRUN_TELL_KEYS": cls.told.path, "KVRUN_FAULT": cls.faults, **cls.more_environment()}
        super().setUpClass()
        if not os.path.exists(cls.told.path):
            cls.tearDownClass()
            raise rig.unittest.SkipTest("this build tells no keys: it has no fault points")
        cls.tenant = cls.server.tenant("memory")
        cls.admin = cls.server.key(cls.tenant, "tenant_admin")
        cls.token = cls.server.key(cls.tenant, "engine")
        cls.engine = Engine(cls.server, cls.token, slots=8, run=65536).open_pool()

    @classmethod
    def tearDownClass(cls):
        try:
            super().tearDownClass()
        finally:
            shutil.rmtree(cls.place, ignore_errors=True)

    def pid(self):
        return self.server.process.pid

    def marked(self):
        """A page whose every 32 bytes have a mark of its own, and the mark."""
        mark, size = os.urandom(PIECE), 2 * self.engine.run
        return mark, b"".join(mark + os.urandom(PIECE) for _ in range(size // 32))

    def used_session(self, **members):
        """A session whose block went out, down to nvme, and came back twice; and the mark of its block."""
        answer = self.server.patient("POST", "/v1/sessions", self.admin, {"model": {"id": "m", "revision": "r"}, **members})
        self.assertEqual(answer.status, 201, answer)
        session = answer.json()["id"]
        mark, page = self.marked()
        self.engine.put(0, page)
        answer = rig.wait_for("an offload", lambda: answered(self.engine.offload(session, ["a"], [0], wait="durable")), 40)
        self.assertEqual((answer.status, answer.json()["results"]), (200, ["stored"]), answer)
        for tier in ("dram", "nvme"):
            if tier == "nvme":
                drain = self.server.call("POST", "/v1/tiers/dram:drain", self.server.operator, headers={"Prefer": "wait=60"})
                self.assertEqual(drain.status, 200, drain)
            self.assertEqual(self.restored(session, [5])["tiers"], [tier])
            self.assertEqual(self.engine.page(5), page)
        self.clear_pool()
        return session, mark

    def restored(self, session, slots):
        """As soon as the server takes it: it may be busy, or between two leases."""
        answer = rig.wait_for("a restore", lambda: answered(self.engine.restore(session, ["a"], slots)), 40)
        self.assertEqual((answer.status, answer.json()["results"]), (200, ["restored"]), answer)
        return answer.json()

    def clear_pool(self):
        """The engine's own memory, which the server maps, is the engine's to wipe."""
        self.engine.memory.write(0, bytes(self.engine.memory.size))

    def erase(self, session):
        answer = self.server.call("POST", "/v1/erasures", self.admin, {"scope": {"session_id": session}},
                                  {"Prefer": "wait=30"})
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)

    def tree(self):
        rows = self.server.database("select encode(node_id,'hex') from ktree_node union select encode(root_id,'hex') from kroot")
        return None if rows is None else set(rows.split())


class Debugger(Base):
    """Without memfd_secret, which no debugger gets to, so that all of it can be looked at."""

    faults = "crypto/secretmem=fail"

    def test_an_erased_session_is_nowhere(self):
        dead, dead_mark = self.used_session(external_id="someone", labels={"user": "7"})
        alive, alive_mark = self.used_session()
        before = self.tree()
        needles, kinds = Needles(), set()
        dead_keys = self.told.session(dead)  # before the erasure, whose check tries the slots of others for this session
        for who, told in (("dead", dead_keys), ("alive", self.told.session(alive))):
            for what, keys in told.items():
                kinds.add(f"{who}/{what}" if keys else None)
                for key in keys:
                    needles.add(f"{who}/{what}", bytes.fromhex(key))
        self.assertLessEqual({f"dead/{what}" for what in ("slot", "scope", "block", "ids", "meta", "stream")}, kinds)
        nodes = self.told.nodes()
        needles[dead_mark], needles[alive_mark] = "dead/plaintext", "alive/plaintext"

        # Control: what lives is found, so that the search is able to find it, and the engine's memory as well.
        hits, summary = scan(self.pid(), Needles({**needles, **{p: n for node, (kind, key) in nodes.items()
                                                                for p, n in forms(f"tree/{kind}", bytes.fromhex(key)).items()}}))
        self.assertGreater(summary["threads"], 4)
        for name in ("dead/block", "dead/ids", "alive/block", "alive/ids", "tree/root", "tree/node"):
            self.assertIn(name, hits, hits.keys())
        unwanted = {n: w for n, w in hits.items() if n.split(".")[0] in
                    ("dead/plaintext", "alive/plaintext", "dead/stream", "alive/stream", "tree/wrapping")}
        self.assertEqual(unwanted, {}, "no block and no key of one outlives its transfer")
        copies = {n: w for n, w in hits.items() if "." in n}
        self.assertEqual(copies, {}, "no key is left in the shape that a hash had it in")

        self.erase(dead)
        if before is not None:
            gone = before - self.tree()
            self.assertGreater(len(gone), 3, "the root and the nodes on the way")
            for node in gone & set(nodes):
                needles.add(f"dead/{nodes[node][0]}", bytes.fromhex(nodes[node][1]))
        # The other one is opened anew under the new root, and used.
        self.restored(alive, [5])
        self.clear_pool()
        hits, summary = scan(self.pid(), needles)
        self.assertEqual({n: w for n, w in hits.items() if n.startswith("dead/")}, {})
        self.assertIn("alive/block", hits)
        self.assertNotIn("alive/plaintext", hits)

        # And planted, it is found: a key of the dead in the memory of an engine, which the server maps. One of its own: the other
        # may have been given up by now.
        memory = Engine(self.server, self.token, slots=1, run=65536).open_pool().memory
        key = dead_keys["block"].pop()
        memory.write(0, bytes.fromhex(key))
        hits, _ = scan(self.pid(), needles)
        self.assertEqual({n: len(w) for n, w in hits.items() if n.startswith("dead/")}, {"dead/block": 2})
        # And what HMAC would keep of it, of SHA-512 for the keys of blocks and of SHA-256 for their ids.
        for what, kind in (("block", "sha512"), ("ids", "sha256")):
            states = dict(midstates(bytes.fromhex(key if what == "block" else dead_keys["ids"].pop())))
            memory.write(0, bytes(128))
            memory.write(0, states[f"ipad.{kind}"] + states[f"opad.{kind}"])
            hits, _ = scan(self.pid(), needles)
            self.assertEqual({n for n in hits if n.startswith("dead/")}, {f"dead/{what}.{pad}.{kind}" for pad in ("ipad", "opad")})


def descendants(pid):
    """All children and theirs."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue  # ended meanwhile
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, next_ones = [], [pid]
    while next_ones:
        next_ones = [child for parent in next_ones for child in parents.get(parent, [])]
        found += next_ones
    return found


def descriptors(pid):
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            pass  # closed meanwhile
    return found


class Kernel(Base):
    """With the best memory that this kernel has."""

    def live(self):
        session, _ = self.used_session()
        needles = Needles()
        for what, keys in self.told.session(session).items():
            for key in keys:
                needles.add(what, bytes.fromhex(key))
        for kind, key in self.told.nodes().values():
            needles.add(kind, bytes.fromhex(key))
        return needles

    def test_not_even_keys_that_live_are_to_be_had_through_the_kernel(self):
        needles = self.live()
        hits, summary = scan(self.pid(), needles)
        if summary["unreadable"] == 0:
            self.skipTest("this kernel gives no memfd_secret memory")
        # Opened nodes are in pages that the kernel reads, as are blocks while they are opened.
        self.assertEqual({name for name in hits if name not in ("slot", "node")}, set())

    def test_children_have_neither_memory_nor_descriptors_of_the_server(self):
        needles, children = self.live(), descendants(self.pid())
        self.assertGreater(len(children), 2, "the private database")
        own = {name for name in descriptors(self.pid()) if name.startswith(("socket:", "anon_inode:", "/memfd:", self.server.state))}
        self.assertGreater(len(own), 3)
        for child in children:
            if not os.path.exists(f"/proc/{child}/fd"):
                continue  # a worker of the database that has ended
            self.assertEqual(own & descriptors(child) - {"anon_inode:[eventpoll]", "anon_inode:[signalfd]"}, set(), child)
            try:
                hits, _ = scan(child, needles)
            except AssertionError:
                if os.path.exists(f"/proc/{child}"):
                    raise
                continue
            self.assertEqual(hits, {}, child)


class Dumps(rig.unittest.TestCase):
    """Core files, where the kernel writes them into the working folder."""

    def setUp(self):
        if pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core":
            self.skipTest("core files do not go to the working folder here")
        limits = resource.getrlimit(resource.RLIMIT_CORE)
        if limits[1] != resource.RLIM_INFINITY:
            self.skipTest("core files are limited here")
        resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_CORE, limits)
        self.place = rig.tempfile.mkdtemp(prefix="kvcore.")
        self.addCleanup(shutil.rmtree, self.place, ignore_errors=True)

    def abort(self, **environment):
        """A server with an open session, ended by SIGABRT; its core file, or None, and what lived."""
        told, canary = Told(os.path.join(self.place, "keys")), os.urandom(PIECE)
        server = rig.Server(environment={"KVRUN_TELL_KEYS": told.path, "KVRUN_CANARY": canary.hex(), **environment})
        self.addCleanup(server.remove)
        if not os.path.exists(told.path):
            self.skipTest("this build tells no keys: it has no fault points")
        session = server.session(server.key(server.tenant("dumps"), "engine"))
        needles = Needles()
        for what, keys in told.session(session).items():
            for key in keys:
                needles.add(what, bytes.fromhex(key))
        for kind, key in told.nodes().values():
            needles.add(kind, bytes.fromhex(key))
        needles[canary.hex()[:PIECE].encode()] = "canary"
        hits, _ = scan(server.process.pid, needles)
        self.assertLessEqual({"block", "canary"}, set(hits))
        server.process.send_signal(signal.SIGABRT)
        server.process.wait(60)
        cores = [name for name in os.listdir(server.folder) if name.startswith("core")]
        return os.path.join(server.folder, cores[0]) if cores else None, needles

    def test_the_server_leaves_no_core_file(self):
        subprocess.run([sys.executable, "-c", "import os; os.abort()"], cwd=self.place)
        self.assertTrue([name for name in os.listdir(self.place) if name.startswith("core")], "control: another program does")
        core, _ = self.abort(KVRUN_FAULT="crypto/secretmem=fail")
        self.assertIsNone(core)

    def test_a_core_file_would_hold_no_key(self):
        core, needles = self.abort(KVRUN_FAULT="crypto/secretmem=fail,server/dumpable=fail")
        if core is None and b"__asan_init" in pathlib.Path(rig.options.kvrun).read_bytes():
            self.skipTest("AddressSanitizer lets its programs leave no core file")
        self.assertIsNotNone(core)
        hits, summary = scan(core, needles)
        self.assertGreater(summary["read"], 1 << 20)
        self.assertEqual(set(hits), {"canary"})


class Filter(rig.unittest.TestCase):
    """System calls that the server has taken from itself."""

    def start(self, *extra, **environment):
        server = rig.Server(*extra, environment={"KVRUN_FAULT": "server/denied-calls=try", **environment})
        self.addCleanup(server.remove)
        entries = [rig.json.loads(line) for line in server.log if line.startswith("{")]
        calls = {entry["call"]: entry["errno"] for entry in entries if entry["event"] == "denied-call"}
        if not calls:
            self.skipTest("this build tries no denied calls: it has no fault points")
        return server, calls, self.mode(server.process.pid), {entry["event"]: entry for entry in entries}

    def mode(self, pid):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return next(line.split()[1] for line in status.splitlines() if line.startswith("Seccomp:"))

    def works(self, server):
        token = server.key(server.tenant("filter"), "engine")
        engine = Engine(server, token).open_pool()
        session = server.session(token)
        page = engine.fill(0, "some text")
        self.assertEqual(engine.offload(session, ["a"], [0], wait="durable").json()["results"], ["stored"])
        drain = server.call("POST", "/v1/tiers/dram:drain", server.operator, headers={"Prefer": "wait=60"})
        self.assertEqual(drain.status, 200, drain)
        self.assertEqual(engine.restore(session, ["a"], [5]).json()["tiers"], ["nvme"])
        self.assertEqual(engine.page(5), page)

    def test_is_on_and_transfers_work_with_either_engine(self):
        for name in ("threads", "io_uring"):
            with self.subTest(name):
                server, calls, mode, events = self.start(f"--io.engine={name}" if name == "threads" else "--io.engine=auto")
                self.assertEqual((calls["process_vm_writev"], mode), (errno.EPERM, "2"))
                self.assertEqual(calls["execve"], errno.ENOENT, "a private database is started again when it ends")
                self.assertTrue(events["hardened"]["seccomp"])
                self.works(server)
                self.assertEqual(server.stop(), 0)

    def test_with_a_database_of_others_no_program_is_run(self):
        host, _, _, _ = self.start()
        if host.database("create database other") is None:
            self.skipTest("psql is not installed")
        where = pathlib.Path(host.state, "postgres.socket").read_text().strip()
        _, calls, _, _ = self.start(f"--db.url=host={where} port=5432 user=kvrun dbname=other")
        self.assertEqual(calls, {"process_vm_writev": errno.EPERM, "execve": errno.EPERM})

    def test_off_and_a_kernel_without_it(self):
        _, calls, mode, events = self.start("--hardening.seccomp=off")
        self.assertEqual((calls["process_vm_writev"], mode, events["hardened"]["seccomp"]), (0, self.mode("self"), False))
        _, calls, mode, events = self.start(KVRUN_FAULT="server/denied-calls=try,server/no-seccomp=fail")
        self.assertEqual((calls["process_vm_writev"], mode, events["hardened"]["seccomp"]), (0, self.mode("self"), False))
        self.assertIn("no-seccomp", events)


def main(module=__name__):
    global scanner
    if "--scanner" in sys.argv:
        at = sys.argv.index("--scanner")
        scanner = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    if scanner is None or not os.access(scanner, os.X_OK):
        print("there is no scanner; give it with --scanner", file=sys.stderr)
        sys.exit(rig.SKIP)
    rig.main(module)


if __name__ == "__main__":
    main()
