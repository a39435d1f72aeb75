#!/usr/bin/env python3
"""Any old backup of the database, under today's root of erasure: taken by pg_dump before, between and after erasures and in
each state of one, restored, and started. And pairs of database and root of one moment, which only an anchor tells.

Each is quarantined, says so on readyz and in the log with what to do, opens nothing, signs nothing and destroys nothing;
with the right database everything is as it was, without a command."""
import os
import re
import subprocess
import sys
import time

import engine
import workload
from drill import arguments, print_violations, programs_missing
from every_point import killed_at, session_with_blocks
from server import Client, Cluster, Server, database_user, postgres_program, wait_until
from world import OPTIONS, Tools, World

SKIP = 77
# Where an erasure is killed, and the state in which the database shows it then.
STATES = [("erase/requested", "requested"), ("erase/fenced", "fenced"), ("erase/staged", "staged"),
          ("erase/rekeyed", "rekeyed"), ("erase/destroyed", "rekeyed"), ("erase/purged", "purged"),
          ("erase/verified", "verified"), ("erase/certified", "certified")]
JOINT = ("before the first erasure", "erase/staged", "erase/rekeyed", "erase/certified")
QUIET_SECONDS = 1.2  # rounds of the eraser, the janitor and the sequencer, which have nothing to await
REFUSED = [("POST", "/v1/sessions", {"model": {"id": "m", "revision": "1"}}),
           ("POST", "/v1/engines", {"name": "e", "kind": "other", "engine_version": "1", "pid": os.getpid(), "boot_id": "b",
                                    "model": engine.MODEL})]


class Backup:
    """A dump, and the file of the root of the same moment."""

    def __init__(self, world, name):
        self.name = name
        self.dump = os.path.join(world.folder, f"dump.{len(os.listdir(world.folder))}")
        world.server.dump(self.dump)
        self.root = contents(root_of(world))
        self.states = world.server.sql("SELECT string_agg(DISTINCT state, ',') FROM kvrun.erasure WHERE state <> 'certified'")


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def put(path, data):
    """In place: the file stays the one that it is."""
    with open(path, "r+b") as file:
        file.write(data)


def root_of(world):
    return os.path.join(world.server.state, "root")


def restored(cluster, backup, number):
    url = cluster.database(f"restored_{number}")
    with open(backup.dump, "rb") as dump:
        subprocess.run([postgres_program("psql"), "-h", cluster.folder, "-U", "kvrun", "-d", f"restored_{number}", "-q",
                        "-v", "ON_ERROR_STOP=1", "-o", os.devnull], stdin=dump, check=True, **database_user())
    return url


class Restored:
    """A server on the world's folder and another database."""

    def __init__(self, world, url, number, anchored):
        self.world, self.ledger = world, world.ledger
        anchor = ["--anchor.file=" + world.anchor] if anchored else []
        self.server = Server(world.tools.kvrun, world.folder, OPTIONS + anchor, url)
        self.server.starts = 1000 + number

    def __enter__(self):
        self.server.start()
        self.admin, self.engine = (Client(self.server.socket, self.world.keys[role]) for role in ("admin", "engine"))
        return self

    def __exit__(self, *_):
        self.admin.close()
        self.engine.close()
        status = self.server.stop()
        self.ledger.blame(status == 0, f"it ended with {status}:\n{self.server.log_tail()}")

    def traces(self):
        """What signing, destroying and changing leave behind."""
        return self.server.sql("SELECT (SELECT count(*) FROM kvrun.audit_leaf), (SELECT count(*) FROM kvrun.audit_outbox),"
                               " (SELECT sum(last_signed_size) FROM kvrun.audit_log), (SELECT count(*) FROM kvrun.erase_batch),"
                               " (SELECT count(*) FROM kvrun.session), (SELECT count(cert_jws) FROM kvrun.erasure),"
                               " (SELECT encode(root_id, 'hex') FROM kvrun.kroot), (SELECT count(*) FROM kvrun.ktree_node),"
                               " (SELECT string_agg(state, ',' ORDER BY id) FROM kvrun.erasure)")

    def readiness(self):
        return self.admin.call("GET", "/readyz?verbose")

    def is_quarantined(self, name, why):
        before, root, anchor = self.traces(), contents(root_of(self.world)), contents(self.world.anchor)
        ready = self.readiness()
        line = re.search(rb"(?m)^\[-\]root_key (.*)$", ready.body)
        self.ledger.blame(ready.status == 503 and line and why.encode() in line.group(1), f"{name}: {ready}")
        with open(self.server.log_path, encoding="utf-8", errors="replace") as log:
            text = log.read()
        self.ledger.blame(re.search(r'"event":"quarantined".*' + re.escape(why), text), f"{name}: the log does not say it")
        for method, path, body in REFUSED + [("POST", "/v1/erasures", {"scope": {"session_id": session.id}})
                                             for session in self.world.ledger.in_state("live")[:1]]:
            client = self.engine if path == "/v1/engines" else self.admin
            answer = client.call(method, path, body)
            self.ledger.blame((answer.status, answer.json["code"]) == (503, "quarantined"), f"{name}: {path}: {answer}")
        time.sleep(QUIET_SECONDS)
        self.ledger.blame(self.traces() == before, f"{name}: {before} became {self.traces()}")
        self.ledger.blame(contents(root_of(self.world)) == root, f"{name}: the root's file changed")
        self.ledger.blame(contents(self.world.anchor) == anchor, f"{name}: the anchor changed")


def lives(world):
    """Erasures, each killed in another state; a backup in each."""
    backups = [Backup(world, "before the first erasure")]
    for point, state in STATES:
        session_with_blocks(world)
        victim = world.ledger.in_state("live")[-1]
        world.kill()
        killed_at(world, point + "=kill@1", lambda w, v=victim: workload.ask_erasure(w, w.client("admin"), v, 0))
        backups.append(Backup(world, point))
        seen = backups[-1].states or "certified"
        world.ledger.blame(seen == state, f"{point}: the backup shows {seen}, not {state}")
        world.start()
        world.check()
    workload.ask_erasure(world, world.client("admin"), world.ledger.in_state("live")[-1], 30)
    world.check()
    backups.append(Backup(world, "after the last erasure"))
    world.end()
    return backups


def heals(world):
    world.start()
    world.check()
    world.end()


def run(world, cluster):
    print(f"{len(STATES)} states", flush=True)
    session_with_blocks(world)
    session_with_blocks(world)
    backups = lives(world)
    today, number = contents(root_of(world)), 0
    for backup in backups[:-1]:
        number += 1
        anchored = number % 2 == 0  # an anchor or none: database and root alone tell it, too
        with Restored(world, restored(cluster, backup, number), number, anchored) as server:
            server.is_quarantined(backup.name, "older than the anchor" if anchored else "do not belong together")
    print(f"{number} old backups under today's root: looked at", flush=True)
    heals(world)
    pairs = [backup for backup in backups if backup.name in JOINT]
    for backup in pairs:
        number += 1
        put(root_of(world), backup.root)
        with Restored(world, restored(cluster, backup, number), number, True) as server:
            server.is_quarantined(backup.name + ", with its root", "older than the anchor")
        put(root_of(world), today)
    print(f"{len(pairs)} of them with the root of their moment and an anchor: looked at", flush=True)
    heals(world)
    controls(world, cluster, backups, today)


def controls(world, cluster, backups, today):
    """Without the anchor a pair is not told (limit L7), and a backup from after the last erasure is no old one."""
    put(root_of(world), backups[0].root)
    with Restored(world, restored(cluster, backups[0], 900), 900, False) as server:
        world.ledger.blame(server.readiness().status == 200, f"a pair without an anchor: {server.readiness()}")
    put(root_of(world), today)
    with Restored(world, restored(cluster, backups[-1], 901), 901, True) as server:
        wait_until(lambda: server.readiness().status == 200, 20, "readiness with the last backup")
    print("controls: looked at", flush=True)


def main():
    options = arguments()
    if options.no_faults:
        print("the server has no fault points", file=sys.stderr)
        return SKIP
    if programs_missing():
        return SKIP
    begun, cluster = time.monotonic(), Cluster()
    try:
        world = World(Tools(options.kvrun, options.verify, options.attack), cluster)
        try:
            run(world, cluster)
            print(f"{len(world.ledger.violations)} violations, {time.monotonic() - begun:.0f} s")
            print_violations(world)
            return 1 if world.ledger.violations else 0
        finally:
            world.remove()
    finally:
        cluster.remove()


if __name__ == "__main__":
    sys.exit(main())
