#!/usr/bin/env python3
"""kill -9 at random points of offload, demotion and erasure, again and again on the same state, and a look at what is
left after each. See README.md for what is checked. All choices follow from one seed, which is printed."""
import argparse
import os
import random
import sys
import time
import traceback

from attack import Loot
from points import DATA_POINTS, ERASE_POINTS, GENERATION_SPECS
from server import Cluster, Gone, postgres_program
from world import Tools, World

SKIP = 77
ROUNDS_OF_A_WORLD = 10
ATTACK_EVERY = 5


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvrun", required=True)
    parser.add_argument("--verify", required=True)
    parser.add_argument("--attack", required=True)
    parser.add_argument("--no-faults", action="store_true", help="the server has no fault points: kill by timer only")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="leave the state folders of failed rounds")
    parser.add_argument("--jobs", help="of the runner; the rounds come one after the other")
    return parser.parse_args()


def long_run():
    return os.environ.get("KV_LONG") == "1"


class Plan:
    """One round: how the server dies."""

    def __init__(self, rng, number, external, faults):
        self.seed = rng.getrandbits(32)
        self.fault = self.after = self.recovery = None
        self.erase_first = False
        if faults and rng.random() < 0.6:
            self.erase_first = rng.random() < 0.6
            points = ERASE_POINTS if self.erase_first else DATA_POINTS
            name, most = rng.choice(sorted(points.items()))
            self.fault = f"{name}=kill@{rng.randint(1, most)}"
            if not self.erase_first and rng.random() < 0.2:
                self.fault = rng.choice(GENERATION_SPECS)
        else:
            self.after = rng.uniform(0.005, 0.4)
        if rng.random() < 0.3:
            self.recovery = rng.uniform(0.01, 1.5)
        self.database = rng.choice(["with", "before"]) if external and rng.random() < 0.4 else None
        if self.database == "before":
            self.fault, self.after = None, rng.uniform(0.05, 0.4)
        self.attack = number % ATTACK_EVERY == ATTACK_EVERY - 1
        self.orderly = rng.random() < 0.2

    def __str__(self):
        parts = [self.fault or f"timer {self.after * 1000:.0f} ms"]
        parts += [f"again {self.recovery * 1000:.0f} ms into the start"] if self.recovery else []
        parts += [f"database {self.database} it"] if self.database else []
        return ", ".join(parts)


def run_round(world, plan):
    """The server runs and was checked; afterwards that is so again. What is worth a word of it."""
    words, loot = [], None
    if plan.attack:
        loot = Loot(world)
    if plan.fault:
        if plan.orderly:
            world.end()
        else:
            world.kill()
        try:
            world.start(plan.fault)
        except Gone:
            words.append("died at its start")
    if world.server.alive():
        own = world.work(plan.seed, plan.after, plan.erase_first, plan.database)
        words += ["reached" if own else "not reached"] if plan.fault else []
    if plan.recovery:
        world.die_in_recovery(plan.recovery)
    world.start()
    world.check()
    if loot:
        words.append(f"{loot.check()} erased sessions attacked")
    return ", ".join(words)


def print_violations(world, most=10):
    violations = world.ledger.violations
    for violation in violations[:most]:
        print(f"  VIOLATION {violation}")
    if len(violations) > most:
        print(f"  and {len(violations) - most} more")


class Drill:
    def __init__(self, options):
        self.options = options
        self.tools = Tools(options.kvrun, options.verify, options.attack)
        self.seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
        self.rounds = options.rounds or (200 if long_run() else 30)
        self.cluster, self.world, self.made = None, None, 0

    def new_world(self):
        """Every second one has a PostgreSQL of its own, which survives the server, or dies when we say."""
        self.made += 1
        external = self.made % 2 == 0
        if external and self.cluster is None:
            self.cluster = Cluster()
        self.world = World(self.tools, self.cluster if external else None, f"world{self.made}")
        return self.world

    def end_world(self, failed):
        if self.world is None:
            return
        if failed and self.options.keep:
            print(f"the state is in {self.world.folder}")
            self.world.kill() if self.world.server.alive() else None
        else:
            self.world.remove()
        self.world = None

    def failed(self, number, plan):
        print_violations(self.world)
        print(f"failed in round {number} ({plan}); again: --seed {self.seed} --rounds {number + 1}")
        print(self.world.server.log_tail())

    def one(self, number):
        rng = random.Random(f"{self.seed}/{number}")
        if number % ROUNDS_OF_A_WORLD == 0:
            self.end_world(False)
            self.new_world()
        plan = Plan(rng, number, self.world.cluster is not None, not self.options.no_faults)
        begun = time.monotonic()
        try:
            words = run_round(self.world, plan)
            if number % ROUNDS_OF_A_WORLD == ROUNDS_OF_A_WORLD - 1 or number == self.rounds - 1:
                self.world.end()
        except Exception:
            words = traceback.format_exc()
            self.world.ledger.violate("the round broke off")
        print(f"round {number}: {plan}: {words} [{time.monotonic() - begun:.1f} s, {self.summary()}]", flush=True)
        if self.world.ledger.violations:
            self.failed(number, plan)
            return False
        return True

    def summary(self):
        sessions = self.world.ledger.sessions.values()
        live = [session for session in sessions if session.state == "live"]
        return f"{len(live)} live, {sum(len(session.durable()) for session in live)} durable blocks, " \
               f"{sum(1 for session in sessions if session.certificate)} certificates"

    def run(self):
        print(f"seed {self.seed}, {self.rounds} rounds", flush=True)
        good = True
        try:
            for number in range(self.rounds):
                good = self.one(number)
                if not good:
                    break
        finally:
            self.end_world(not good)
            if self.cluster:
                self.cluster.remove()
        return good


def programs_missing():
    try:
        for program in ("initdb", "postgres", "psql", "pg_dump"):
            postgres_program(program)
    except FileNotFoundError as missing:
        print(f"PostgreSQL's {missing} is not here", file=sys.stderr)
        return True
    return False


def main():
    options = arguments()
    if programs_missing():
        return SKIP
    return 0 if Drill(options).run() else 1


if __name__ == "__main__":
    sys.exit(main())
