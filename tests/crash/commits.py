#!/usr/bin/env python3
"""A connection to the database is cut off during COMMIT, at each transaction on the path of an erasure: the COMMIT never got
there, or was carried out and nobody heard, or gets there when the server has begun to go on without it. Whatever happened, the
erasure ends with one certificate, and what lives opens. The controls are a server that takes "no answer" for "did not happen",
and one that does not wait for the transaction before."""
import os
import re
import sys
import time
import traceback

from attack import Loot
from drill import arguments, long_run, print_violations, programs_missing
from every_point import ask_one, fill
from ledger import ASKED, LIVE, LOST_SESSION, Sum
from relay import CARRIED_OUT, LATE, LOST, WAIT_SECONDS, CommitRelay
from server import Cluster, wait_until
from world import Tools, World

SKIP = 77
# A statement by which a transaction is known.
STATEMENTS = {"erase-request": "erasure_insert", "erase-staged": "batch_insert", "erase-rekey": "kroot_set",
              "certificate": "certificate_set", "bundle": "certificate_set_bundle"}
ALWAYS = ("erase-request", "erase-rekey")
CONTROLS = (("erase-rekey", CARRIED_OUT, "erase/undoubted=on"), ("erase-rekey", LATE, "erase/unwaited=on"))


def waits(cluster):
    """Somebody waits for a lock that a transaction holds."""
    return cluster.sql("DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock') THEN"
                       " RAISE 'nobody'; END IF; END $$")


def settle(world):
    """A request that nobody answered: when it stands after all, the session closes as soon as the eraser comes to it."""
    client = world.client("engine")
    for session in world.ledger.in_state(ASKED):
        gone = client.call("GET", f"/v1/sessions/{session.id}").status == 410
        wait_until(lambda: not gone or client.call("POST", "/v1/lookups", lookup_of(world, session)).status == 410,
                   WAIT_SECONDS, "the end of a session whose request stands")


def lookup_of(world, session):
    block = session.all()[0]
    return {"session_id": session.id, "pool_id": block.pool.id, "hashes": [block.hash]}


def what_lives_opens(world, loot):
    """With the root and the database of now, and nothing else."""
    root, dump = os.path.join(world.server.state, "root"), loot.path("now.sql")
    world.server.dump(dump)
    for session in world.ledger.in_state(LIVE)[:1]:
        opened, copies = loot.attack(session, root, dump)
        world.ledger.blame(opened == copies, f"{session.id} lives: {opened} of {copies} open", LOST_SESSION)


class Commits:
    def __init__(self, options):
        self.tools, self.cluster, self.sum, self.number = Tools(options.kvrun, options.verify, options.attack), Cluster(), Sum(), 0

    def world(self, transaction, how, fault=None):
        """What became of it."""
        self.number += 1
        relay = CommitRelay(self.cluster, lambda: waits(self.cluster))
        world = World(self.tools, relay, f"c{self.number}")
        try:
            fill(world)
            loot = Loot(world)
            if fault:
                world.kill()
                world.start(fault)
            relay.arm(STATEMENTS[transaction], how)
            ask_one(world)
            world.ledger.blame(relay.over.wait(2 * WAIT_SECONDS), f"no COMMIT of {transaction} came by")
            if fault:
                self.mistake(world)
            else:
                settle(world)
                world.check()
                loot.check()
            what_lives_opens(world, loot)
            if not fault:
                world.end()
        except Exception:
            world.ledger.violate(traceback.format_exc())
        finally:
            world.remove()
            relay.remove()
        return world

    def mistake(self, world):
        """A control's: its next round finds rows that it did not expect, and by then the root is gone that they name."""
        def seen():
            with open(world.server.log_path, errors="replace") as log:
                return re.search(r'"round-failed".*"stale"', log.read())
        wait_until(seen, WAIT_SECONDS, "the control's mistake")

    def good(self, transaction, how):
        begun, world = time.monotonic(), self.world(transaction, how)
        violations = world.ledger.violations
        print(f"{transaction}, {how}: {'FAILED' if violations else 'good'} [{time.monotonic() - begun:.1f} s]", flush=True)
        print_violations(world)
        self.sum.runs += 1
        self.sum.kills += 1
        self.sum.kinds.update(world.ledger.kinds)

    def control(self, transaction, how, fault):
        begun, world = time.monotonic(), self.world(transaction, how, fault)
        found = world.ledger.kinds[LOST_SESSION] > 0
        print(f"control, {transaction}, {how}, {fault}: {'found' if found else 'NOT FOUND'} "
              f"[{time.monotonic() - begun:.1f} s]", flush=True)
        if not found:
            print_violations(world)
        return found

    def run(self, faults):
        found = [self.control(*control) for control in CONTROLS if faults]
        for transaction in STATEMENTS if long_run() else ALWAYS:
            for how in (LOST, CARRIED_OUT, LATE):
                self.good(transaction, how)
        print(self.sum)
        return self.sum.good() and all(found)


def main():
    options = arguments()
    if programs_missing():
        return SKIP
    commits = Commits(options)
    try:
        return 0 if commits.run(not options.no_faults) else 1
    finally:
        commits.cluster.remove()


if __name__ == "__main__":
    sys.exit(main())
