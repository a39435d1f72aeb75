#!/usr/bin/env python3
"""The checks can fail: each is shown something broken on purpose, and has to say so, after it found nothing wrong."""
import os
import re
import sys
import time

import workload
from attack import Loot
from drill import arguments, programs_missing
from ledger import ACCEPTED, CHANGED, FALSE_CERTIFICATE, LIVE, LOST_SESSION, NOT_ENDED
from server import Cluster
from world import Tools, World

SKIP = 77
CHUNK = 64 * 1024
NAMES = ("flip_byte_of_a_block", "lose_the_index", "promise_what_was_never_stored", "take_a_live_session_for_erased",
         "forget_a_session", "count_one_too_many", "change_a_certificate", "show_another_head", "hold_an_erasure_up", "attack")
# By which of the promises that are counted it has to be counted.
KINDS = {"promise_what_was_never_stored": LOST_SESSION, "take_a_live_session_for_erased": FALSE_CERTIFICATE,
         "change_a_certificate": CHANGED, "hold_an_erasure_up": NOT_ENDED, "attack": FALSE_CERTIFICATE}


class Broken:
    """Each method breaks one thing, and returns what has to be found then."""

    def __init__(self, world):
        self.world, self.ledger = world, world.ledger
        self.nvme = os.path.join(world.server.state, "nvme")

    def live(self):
        return self.ledger.in_state(LIVE)[-1]

    def restart(self, damage):
        """With the server away, so that what is damaged is all there is."""
        self.world.kill()
        damage()
        self.world.start()

    def arena_chunks(self):
        with open(os.path.join(self.nvme, "arena"), "rb") as arena:
            return [hash(chunk) for chunk in iter(lambda: arena.read(CHUNK), b"")]

    def flip_byte_of_a_block(self):
        before = self.arena_chunks()
        workload.offload(self.world, self.world.client("engine"), self.live(), self.world.pools[0], [30],
                         workload.Slots(0, 2), "durable")
        after = self.arena_chunks()
        written = [i for i, chunk in enumerate(after) if chunk != before[i]]

        def damage():
            offset = written[len(written) // 2] * CHUNK + CHUNK // 2
            with open(os.path.join(self.nvme, "arena"), "r+b") as arena:
                arena.seek(offset)
                byte = arena.read(1)[0]
                arena.seek(offset)
                arena.write(bytes([byte ^ 1]))
        self.restart(damage)
        return r"block 30 .*durable True, restored as (quarantined|missing)"

    def lose_the_index(self):
        def damage():
            for name in os.listdir(self.nvme):
                if name.startswith("index.") and name.endswith(".log"):
                    os.truncate(os.path.join(self.nvme, name), 64)  # its header
        self.restart(damage)
        return r"was acknowledged as durable and is on none"

    def promise_what_was_never_stored(self):
        self.live().block(self.world.pools[0], 39).durable = True
        return r"block 39 .* was acknowledged as durable and is on none"

    def take_a_live_session_for_erased(self):
        self.live().state = ACCEPTED
        return r"restore of ses_\w+, whose erasure was accepted: 200"

    def forget_a_session(self):
        del self.ledger.sessions[self.live().id]
        return r"usage: tiers say"

    def count_one_too_many(self):
        self.world.server.sql("INSERT INTO kvrun.erasure_group (id, tenant_id, scope, cutoff, basis, requested_role, state,"
                              " sessions, created_at, ended_at) SELECT decode(repeat('07', 16), 'hex'), id, 'tenant', now(),"
                              " 'other', 'tenant_admin', 'certified', 1, now(), now() FROM kvrun.tenant LIMIT 1")
        return r"groups that are not as they say: 07\w+\|certified\|1\|0"

    def change_a_certificate(self):
        session = self.ledger.in_state(ACCEPTED)[0]
        session.certificate = session.certificate.replace(b"index", b"Index", 1)
        return r"its certificate has changed"

    def hold_an_erasure_up(self):
        self.world.kill()
        self.world.start("roe/file/destroy-write=fail@1")
        workload.ask_erasure(self.world, self.world.client("admin"), self.live(), 0)
        return r"did not end by itself"

    def show_another_head(self):
        self.world.heads = {key: "another root" for key in self.world.heads}
        return r"had two roots at size"


def prepared(world):
    """Two fresh sessions with blocks, and one that is erased."""
    client, slots = world.client("engine"), workload.Slots(0, 2)
    for _ in range(3):
        session = workload.create_session(world, client)
        for pool in world.pools:
            workload.offload(world, client, session, pool, range(3), slots, "durable")
    workload.ask_erasure(world, world.client("admin"), session, 10)


def one(tools, cluster, name):
    world = World(tools, cluster, name)
    try:
        prepared(world)
        world.check()
        if world.ledger.violations:
            return f"violations before anything was broken: {world.ledger.violations}"
        wanted = getattr(Broken(world), name)()
        world.check()
        found = [text for text in world.ledger.violations if re.search(wanted, text)]
        counted = name not in KINDS or world.ledger.kinds[KINDS[name]] > 0
        return None if found and counted else f"not found: {wanted} in {world.ledger.violations}, {world.ledger.kinds}"
    finally:
        world.remove()


def attack(tools, cluster):
    """A certificate without an erasure: the thief opens the copies."""
    world = World(tools, cluster, "attack")
    try:
        prepared(world)
        loot = Loot(world)
        world.ledger.in_state(LIVE)[0].state = ACCEPTED
        loot.check()
        found = [text for text in world.ledger.violations if re.search(r"is erased by None: opened \(6, 6\)", text)]
        counted = world.ledger.kinds == {KINDS["attack"]: 1}
        return None if found and counted else f"not found: {world.ledger.violations}, {world.ledger.kinds}"
    finally:
        world.remove()


def main():
    options = arguments()
    if programs_missing():
        return SKIP
    tools, cluster, failures = Tools(options.kvrun, options.verify, options.attack), Cluster(), 0
    try:
        for name in NAMES:
            if name == "hold_an_erasure_up" and options.no_faults:
                continue
            begun = time.monotonic()
            problem = attack(tools, cluster) if name == "attack" else one(tools, cluster, name)
            print(f"{name}: {problem or 'found'} [{time.monotonic() - begun:.1f} s]", flush=True)
            failures += problem is not None
    finally:
        cluster.remove()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
