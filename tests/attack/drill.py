#!/usr/bin/env python3
"""The promise at full strength. Under load, with a base backup every second and the whole log archived, many sessions are
erased; then a thief who holds all backups, the log, every tier's bytes, an image of the server's memory and the root as it is
now reads none of the erased ones and all that live. Before the erasures, and with a root that was stolen in time (limit L7),
the same thief reads them all: so it is the root that is missing, and nothing else.

One run is about one provider; see README.md. KV_LONG=1: more of everything, and nothing is sampled."""
import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import drill_memory
import drill_roots
from drill_database import Database, size_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "crash"))
import engine  # noqa: E402
from server import Client, Gone, Server, database_user, postgres_program, wait_until  # noqa: E402

SKIP = 77
LONG = os.environ.get("KV_LONG") == "1"
GROUPS = 4
LIVE_EVERY = 5  # of the sessions from before the erasures; more are made during and after them
LIVE_DURING_MAX, LIVE_AFTER = 100, 20
THREADS = 4
PAGE = 4096
RESTORED_MAX = 1000 if LONG else 4
LOOSELY_EVERY = 1 if LONG else 25
ERASED_SECONDS = 1200
OPTIONS = ["--tiers.dram.bytes=64MiB", "--tiers.nvme.bytes=256MiB", "--rate.default=0"]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvrun", required=True)
    parser.add_argument("--attack", required=True)
    parser.add_argument("--provider", choices=sorted(drill_roots.PROVIDERS), default="file")
    parser.add_argument("--no-faults", action="store_true", help="the server has no fault points: its arena cannot be read")
    parser.add_argument("--erased", type=int, default=5000 if LONG else 1000, help="how many sessions are erased")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    parser.add_argument("--jobs", help="of the runner")
    return parser.parse_args()


class Failed(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failed(text)


def mega(count):
    return f"{count / 1e6:.0f} MB"


class Load:
    """Sessions with one durable block each. Every one that is to be erased belongs to a group by its label."""

    def __init__(self, drill):
        self.drill, self.lock = drill, threading.Lock()
        self.pool = engine.Pool("drill", PAGE, THREADS)
        self.erased, self.live = [], []
        self.failure, self.over = None, threading.Event()
        self.engine = engine.register(drill.client("engine"), drill.server.fd_socket, [self.pool])
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        number = 0
        while not self.over.wait(10):
            number += 1
            with contextlib.suppress(Gone):  # the next one comes soon enough
                self.drill.client("engine").call("POST", f"/v1/engines/{self.engine}:heartbeat", {"seq": number})

    def make(self, client, slot, number, group):
        """One session; `group` None: one that stays."""
        labels = {"batch": f"g{group}"} if group is not None else {"batch": "stays"}
        answer = self.patient(client, "/v1/sessions", {"model": engine.MODEL, "labels": labels}, 201)
        session = answer.json["id"]
        block = engine.block_hash(session, "drill", 0)
        self.pool.write(slot, engine.block_bytes(block, PAGE))
        answer = self.patient(client, "/v1/offloads", {"session_id": session, "pool_id": self.pool.id, "hashes": [block],
                                                       "slots": [slot], "wait": "durable"}, 200)
        check(answer.json["results"] == ["stored"], f"session {number}: {answer}")
        with self.lock:
            (self.live if group is None else self.erased).append(session)

    @staticmethod
    def patient(client, path, body, status):
        for _ in range(200):
            answer = client.call("POST", path, body)
            if answer.status != 503:
                break
            time.sleep(0.1)
        check(answer.status == status, f"{path}: {answer}")
        return answer

    def make_many(self, groups):
        """As many threads as there are; `groups` says for each session where it belongs."""
        places, each = list(enumerate(groups)), []

        def work(slot):
            client = self.drill.client("engine")
            try:
                for number, group in places[slot::THREADS]:
                    if self.failure:
                        return
                    self.make(client, slot, number, group)
            except Exception as error:  # noqa: BLE001: raised again below
                self.failure = error

        for slot in range(THREADS):
            each.append(threading.Thread(target=work, args=(slot,)))
            each[-1].start()
        for thread in each:
            thread.join()
        if self.failure:
            raise self.failure


class Drill:
    def __init__(self, options):
        self.options, self.begun = options, time.monotonic()
        self.folder = tempfile.mkdtemp(prefix="kvat.")
        os.chmod(self.folder, 0o711)
        self.database = self.root = self.server = None
        self.keys = {}

    def note(self, text):
        print(f"[{time.monotonic() - self.begun:.0f} s] {text}", flush=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    # --- the world

    def start(self):
        os.mkdir(self.path("db"))
        user = database_user()
        if user:
            os.chown(self.path("db"), user["user"], user["group"])
        os.mkdir(self.path("provider"))
        self.database = Database(self.path("db"))
        self.root = drill_roots.PROVIDERS[self.options.provider](self.path("provider"))
        os.environ.update(self.root.environment)
        self.server = Server(self.options.kvrun, self.folder, OPTIONS + self.root.arguments, self.database.url())
        # Where the kernel has memory that no debugger gets to, the keys would be in it, and nothing be shown of the rest.
        self.server.start(None if self.options.no_faults else "crypto/secretmem=fail")
        self.keys["operator"] = self.server.operator_key()
        operator = self.client("operator")
        tenant = operator.call("POST", "/v1/tenants", {"name": "acme"}).json["id"]
        for name, role in (("engine", "engine"), ("admin", "tenant_admin")):
            answer = operator.call("POST", f"/v1/tenants/{tenant}/api-keys", {"name": name, "roles": [role]})
            self.keys[name] = answer.json["secret"]
        self.load = Load(self)

    def client(self, role):
        return Client(self.server.socket, self.keys[role])

    def copy_tier(self, name):
        """All of the nvme tier, with what was in dram on it."""
        answer = self.client("operator").call("POST", "/v1/tiers/dram:drain", Prefer="wait=60")
        check(answer.status == 200, f"drain: {answer}")
        subprocess.run(["cp", "-a", "--sparse=always", os.path.join(self.server.state, "nvme"), self.path(name)], check=True)

    def erase(self):
        """All groups one after the other, while sessions go on being made."""
        client, groups, rest = self.client("admin"), [], threading.Thread(target=self.make_more)
        rest.start()
        for group in range(GROUPS):
            answer = client.call("POST", "/v1/erasures", {"scope": {"label": {"batch": f"g{group}"}}, "basis": "gdpr_art17"})
            check(answer.status in (200, 202), f"group {group}: {answer}")
            groups.append(answer.json["id"])
        count = 0
        for group in groups:
            wait_until(lambda: self.ended(client, group), ERASED_SECONDS, f"the certificates of {group}")
            count += client.call("GET", f"/v1/erasures/{group}").json["sessions"]["certified"]
        self.stop_making.set()
        rest.join()
        check(count == len(self.load.erased), f"{count} certificates for {len(self.load.erased)} erased sessions")
        for session in random.sample(self.load.erased, 10):
            answer = client.call("GET", f"/v1/sessions/{session}")
            check(answer.status == 410, f"{session}: {answer}")

    def ended(self, client, group):
        time.sleep(0.2)
        answer = client.call("GET", f"/v1/erasures/{group}", Prefer="wait=5").json
        check(answer["state"] != "quarantined" and answer["sessions"]["quarantined"] == 0, answer)
        return answer["state"] == "certified" and answer["sessions"]["complete"]

    def make_more(self):
        client, number = self.client("engine"), 0
        try:
            while not self.stop_making.wait(0.2) and number < LIVE_DURING_MAX:
                number += 1
                self.load.make(client, 0, number, None)
        except Exception as error:  # noqa: BLE001: seen in run()
            self.load.failure = error

    # --- the thief

    def attack(self, *inputs):
        """Per session: copies opened, copies. And what the attack says of itself."""
        done = subprocess.run([self.options.attack, "--json", "--each", *inputs], stdout=subprocess.PIPE, text=True)
        check(done.returncode == 0, f"the attack did not run: {done.stdout[-500:]}")
        *lines, last = done.stdout.splitlines()
        found = {}
        for line in lines:
            session, opened, copies = line.split()
            found[session] = (int(opened), int(copies))
        return found, json.loads(last)

    def collect(self, name, *inputs):
        """What is in `inputs`, as an option for the attack, and the wrapped roots among it: large files are read once."""
        done = subprocess.run([self.options.attack, "--list-roots", "--collect", self.path(name), *inputs], stdout=subprocess.PIPE,
                              text=True)
        check(done.returncode == 0, f"the attack did not collect: {done.stdout[-500:]}")
        return ["--raw", self.path(name)], done.stdout

    def root_options(self, roots, stolen=None):
        """The attack's options for the root: the provider is asked for every wrapped root that was found."""
        options, secrets = self.root.attack(roots, stolen)
        check(options or secrets, "the provider gave nothing at all")
        if secrets:
            name = self.path(f"secrets.{len(os.listdir(self.folder))}")
            pathlib.Path(name).write_bytes(b"".join(secrets))
            options += ["--memory", name]
        return options

    @staticmethod
    def opened(found, sessions):
        """Of how many sessions something was opened; a session without a copy is no proof of anything."""
        missing = [session for session in sessions if session not in found]
        check(not missing, f"no copy of {len(missing)} sessions, such as {missing[:1]}")
        return sum(1 for session in sessions if found[session][0] > 0)

    @staticmethod
    def all_opened(found, sessions):
        return sum(1 for session in sessions if session in found and found[session][0] == found[session][1])

    def before(self):
        """The control: everything as it is before the first erasure."""
        self.server.dump(self.path("before.sql"))
        rows = ["--dump", self.path("before.sql")]
        whole = [option for backup in list(self.database.taken) for option in ("--raw", backup)]  # the next one is on its way
        raw, roots = self.collect("loot.before", *rows, *whole, "--raw", self.database.archive)
        found, says = self.attack(*raw, *rows, *self.root_options(roots), "--arena", self.path("nvme.before"))
        erased, live = self.all_opened(found, self.load.erased), self.all_opened(found, self.load.live)
        self.note(f"before: opened {erased} of {len(self.load.erased)} (and {live} of {len(self.load.live)} that will live); "
                  f"{says['nodes']} nodes, {says['wrapped_roots']} wrapped roots")
        check((erased, live) == (len(self.load.erased), len(self.load.live)), "the attack is not good enough to show anything")

    def restore(self):
        """The backups that run again: first, last, and some between. To the end of the log goes the oldest, through everything that
        happened; with KV_LONG=1 all of them."""
        taken = self.database.taken
        count = min(RESTORED_MAX, len(taken))
        chosen = sorted({taken[i * (len(taken) - 1) // max(1, count - 1)] for i in range(count)})
        wanted = [(backup, ("consistent", "end") if LONG or backup == taken[0] else ("consistent",)) for backup in chosen]
        return chosen, self.database.restore_all(wanted)

    def run(self):
        self.start()
        self.database.back_up_every_second()
        erased = self.options.erased
        total = erased + erased // LIVE_EVERY
        groups = [None if i % (LIVE_EVERY + 1) == LIVE_EVERY else i % GROUPS for i in range(total)]
        self.load.make_many(groups)
        check(len(self.load.erased) == erased, len(self.load.erased))
        self.copy_tier("nvme.before")
        self.note(f"{self.options.provider}: {total} sessions with a block each, {len(self.database.taken)} base backups so far")
        self.before()
        stolen = self.root.steal(self.path("stolen"))
        self.stop_making = threading.Event()
        self.erase()
        self.note(f"{erased} sessions erased and certified")
        self.load.make_many([None] * LIVE_AFTER)
        self.database.end_backups()
        self.database.back_up()
        self.after(stolen)

    def after(self, stolen):
        self.copy_tier("nvme.after")
        core, secret = self.path("core"), self.path("core.secret")
        sizes = drill_memory.image(self.server.process.pid, core, secret)
        self.server.dump(self.path("after.sql"))
        self.database.archive_all()
        self.load.over.set()
        status = self.server.stop()
        check(status == 0, f"the server ended with {status}:\n{self.server.log_tail()}")
        self.database.stop()
        chosen, dumps = self.restore()
        dumps += [self.path("before.sql"), self.path("after.sql")]
        self.note(f"restored {len(chosen)} of {len(self.database.taken)} base backups, {len(dumps)} dumps")

        self.tell_sizes(sizes, dumps)
        places = (self.database.backups, self.database.archive, self.database.data, core)
        bytes_alone, roots = self.collect("loot.raw", *(option for path in places for option in ("--raw", path)))
        rows = [option for dump in dumps for option in ("--dump", dump)]
        _, more_roots = self.collect("loot.rows", *rows)
        roots = "\n".join(sorted({*roots.splitlines(), *more_roots.splitlines()}))
        self.note(f"carved; {len(roots.splitlines())} wrapped roots to be tried on the provider")
        now = self.root_options(roots)
        memory = ["--memory", secret, "--loosely-every", str(LOOSELY_EVERY)]
        tiers = ["--arena", self.path("nvme.before"), "--arena", self.path("nvme.after"), "--leftovers", "--blocks", core]
        self.judge([*bytes_alone, *rows], now, memory, tiers)
        self.controls(bytes_alone, rows, now, memory, self.root_options(roots, stolen))

    def tell_sizes(self, sizes, dumps):
        of = self.database
        self.note(f"the thief has: {len(of.taken)} base backups ({mega(size_of(of.backups))}), {len(os.listdir(of.archive))} log files "
                  f"({mega(size_of(of.archive))}), the data folder ({mega(size_of(of.data))}), {len(dumps)} dumps, memory of the server "
                  f"({mega(sizes['whole'])}, of which {mega(sizes['keys'])} for keys; {mega(sizes['unreadable'])} not to be read), "
                  f"nvme of before and of now ({mega(size_of(self.path('nvme.before'), self.path('nvme.after')))})")

    def judge(self, inputs, now, memory, tiers):
        """Everything there is against every session."""
        found, says = self.attack(*inputs, *now, *memory, *tiers)
        erased, live = self.opened(found, self.load.erased), self.all_opened(found, self.load.live)
        self.note(f"after: recovered {erased} of {len(self.load.erased)} erased")
        self.note(f"after: opened {live} of {len(self.load.live)} live; {sum(copies for _, copies in found.values())} copies, "
                  f"{says['nodes']} sealed nodes of which {says['nodes_opened']} opened, {says['wrapped_roots']} wrapped roots, "
                  f"{says['windows']} windows of memory, {says['secrets']} secrets, {says['tries']} tries")
        check(says["complete"], "some secrets were not tried on some nodes")
        check(erased == 0, [session for session in self.load.erased if found[session][0]][:3])
        check(live == len(self.load.live), [session for session in self.load.live if found.get(session) is None
                                            or found[session][0] < found[session][1]][:3])

    def controls(self, bytes_alone, rows, now, memory, stolen):
        """Each kind of loot alone is good for what it should be good for."""
        before, after = ["--arena", self.path("nvme.before")], ["--arena", self.path("nvme.after")]
        found, _ = self.attack(*bytes_alone, *rows, *stolen, *before)
        count = self.all_opened(found, self.load.erased)
        self.note(f"control: with the root that was stolen in time, opened {count} of {len(self.load.erased)} erased (L7)")
        check(count == len(self.load.erased), "what was tried is not what was erased")
        found, _ = self.attack(*bytes_alone, *now, *after)
        count = self.all_opened(found, self.load.live)
        self.note(f"control: from raw bytes alone, opened {count} of {len(self.load.live)} live")
        check(count == len(self.load.live), "carving misses something")
        if self.options.no_faults:
            return
        found, _ = self.attack(*rows, *memory, *after)
        count = self.all_opened(found, self.load.live)
        self.note(f"control: with the server's memory for a root, opened {count} of {len(self.load.live)} live")
        check(count == len(self.load.live), "the image of memory misses something")

    def remove(self):
        for end in (self.server and self.server.alive() and self.server.kill, self.database and self.database.end,
                    self.root and self.root.end):
            if end:
                end()
        if self.options.keep:
            print(f"everything is in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def missing(provider):
    try:
        for program in ("initdb", "postgres", "psql", "pg_dump", "pg_basebackup"):
            postgres_program(program)
    except FileNotFoundError as program:
        return f"PostgreSQL's {program} is not here"
    return drill_roots.missing(provider)


def main():
    options = arguments()
    absent = missing(options.provider)
    if absent:
        print(absent, file=sys.stderr)
        return SKIP
    drill = Drill(options)
    try:
        drill.run()
        return 0
    except Failed as failed:
        print(f"FAILED: {failed}", file=sys.stderr)
        return 1
    finally:
        drill.remove()


if __name__ == "__main__":
    sys.exit(main())
