#!/usr/bin/env python3
"""Each fault point on the path of an erasure, at its first passing: killed there, started again, looked at, and robbed.
Then kills in the recovery from such a kill, and kills at the very first start. By default a sample that follows from
the seed, with KV_LONG=1 all of them."""
import random
import sys
import time
import traceback

import workload
from attack import Loot
from drill import arguments, long_run, print_violations, programs_missing
from points import ERASE_POINTS, FIRST_START, IN_RECOVERY
from server import Cluster, Gone
from world import Tools, World

SKIP = 77
SAMPLE = {"erase": 10, "recovery": 3, "first": 4}
DEATH_SECONDS = 20
VICTIMS = 2


def fill(world):
    """Two sessions with blocks on nvme, so that one is left as the control."""
    client, slots = world.client("engine"), workload.Slots(0, 2)
    while len(world.ledger.in_state("live")) < VICTIMS:
        session = workload.create_session(world, client)
        for pool in world.pools:
            workload.offload(world, client, session, pool, range(3), slots, "durable")


def killed_at(world, fault, ask):
    """Starts with the fault and asks for an erasure, unless one is under way; it has to die of it."""
    try:
        world.start(fault)
        if ask:
            workload.ask_erasure(world, world.client("admin"), world.ledger.in_state("live")[0], 0)
    except Gone:
        pass
    world.ledger.blame(world.server.wait_dead(DEATH_SECONDS), f"{fault} did not come by")
    world.kill()


def on_the_path(world, *points):
    fill(world)
    loot = Loot(world)
    world.kill()
    for number, point in enumerate(points):
        killed_at(world, point + "=kill@1", number == 0)
    world.start()
    world.check()
    loot.check()


def first_start(tools, cluster, number, point):
    world = World(tools, cluster, f"first{number}", point + "=kill@1")
    try:
        on_the_path(world)
        client = world.client("admin")
        workload.ask_erasure(world, client, world.ledger.in_state("live")[0], 10)
        world.check()
        world.end()
    finally:
        world.remove()
    return world


def sample(rng, what, all_of_it):
    all_of_it = list(all_of_it)
    return all_of_it if long_run() else rng.sample(all_of_it, SAMPLE[what])


class Points:
    def __init__(self, options):
        self.tools = Tools(options.kvrun, options.verify, options.attack)
        self.seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
        self.failures = 0

    def report(self, what, begun, world):
        violations = world.ledger.violations
        print(f"{what}: {'FAILED' if violations else 'good'} [{time.monotonic() - begun:.1f} s]", flush=True)
        print_violations(world)
        if violations:
            print(world.server.log_tail())
        self.failures += bool(violations)
        world.ledger.violations = []

    def path(self, rng):
        world = World(self.tools)
        try:
            singles = [(point,) for point in sample(rng, "erase", ERASE_POINTS)]
            for points in singles + sample(rng, "recovery", IN_RECOVERY):
                begun = time.monotonic()
                try:
                    on_the_path(world, *points)
                except Exception:
                    world.ledger.violate(traceback.format_exc())
                self.report(", then ".join(points), begun, world)
                if not world.server.alive():
                    return
            world.end()
            self.report("an orderly end", time.monotonic(), world)
        finally:
            world.remove()

    def first(self, rng):
        cluster = Cluster()
        try:
            for number, point in enumerate(sample(rng, "first", FIRST_START)):
                begun = time.monotonic()
                try:
                    self.report(f"first start, {point}", begun, first_start(self.tools, cluster, number, point))
                except Exception:
                    print(f"first start, {point}: FAILED\n{traceback.format_exc()}", flush=True)
                    self.failures += 1
        finally:
            cluster.remove()

    def run(self):
        print(f"seed {self.seed}, {'all points' if long_run() else 'a sample'}", flush=True)
        rng = random.Random(self.seed)
        self.path(rng)
        self.first(rng)
        return self.failures == 0


def main():
    options = arguments()
    if options.no_faults:
        print("the server has no fault points", file=sys.stderr)
        return SKIP
    if programs_missing():
        return SKIP
    return 0 if Points(options).run() else 1


if __name__ == "__main__":
    sys.exit(main())
