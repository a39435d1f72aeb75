#!/usr/bin/env python3
"""Killed between every two system calls that touch the root's file. Most runs are of a process that does nothing but make and
destroy roots (kvrun-root-kills, milliseconds each); the others are of the whole server with PostgreSQL, in an erasure and in
the recovery from it. 300 runs, with KV_LONG=1 at least 10,000. The last line is the sum of all."""
import argparse
import collections
import os
import random
import re
import subprocess
import sys
import time
import traceback

from attack import Loot
from drill import long_run, print_violations, programs_missing
from every_point import ask_one, fill
from ledger import KINDS, Sum
from server import Cluster, Gone
from world import Tools, World

SKIP = 77
RUNS, RUNS_OF_SERVER = (10000, 400) if long_run() else (300, 12)  # in all; of them with the whole server
ON_DISK = 1000  # the others, where writes cost nothing: a killed process loses none of them either way
IN_MEMORY = "/dev/shm"
RUNS_OF_A_WORLD = 20
DEATH_SECONDS = 30
RECOVERY_CALLS = 40  # which a start makes at least, when there is something to recover
SEED_OF_CHECK = 20261201  # the same runs each time
NAIVE = {"rename": "false certificates", "mark_first": "false certificates", "activate_first": "lost live sessions",
         "adopt_staged": "lost live sessions", "not_repeated": "jobs that did not end"}
NAIVE_RUNS = 60


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("kvrun", "verify", "attack", "kill-at-call", "root-kills"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--no-faults", action="store_true", help="makes no difference: nothing here needs fault points")
    parser.add_argument("--seed", type=int, default=SEED_OF_CHECK)
    parser.add_argument("--runs", type=int, default=RUNS - RUNS_OF_SERVER, help="without the server")
    parser.add_argument("--from", type=int, default=0, dest="first", help="go on with this run without the server")
    parser.add_argument("--server-runs", type=int, default=RUNS_OF_SERVER)
    parser.add_argument("--server-from", type=int, default=0)
    parser.add_argument("--jobs", help="of the runner; the runs come one after the other")
    return parser.parse_args()


# --- without the server

def root_kills(options, tell, *arguments, place=None):
    """The numbers of its last line; an error where it did not get that far."""
    line, environment = "", {**os.environ, **({"TMPDIR": place} if place and os.access(place, os.W_OK) else {})}
    with subprocess.Popen([options.root_kills, *map(str, arguments)], stdout=subprocess.PIPE, text=True,
                          env=environment) as run:
        for line in run.stdout:
            tell(line)
    if run.returncode == SKIP:
        raise PermissionError("this user may not hold a process")
    found = {name: int(count) for count, name in re.findall(r"(\d+) ([a-z ]+)", line)}
    if run.returncode not in (0, 1) or "runs" not in found:
        raise RuntimeError(f"kvrun-root-kills ended with {run.returncode}: {line}")
    return found


def of_the_provider(options, total):
    for first, end, place in (0, ON_DISK, None), (ON_DISK, options.runs, IN_MEMORY):
        first, end = max(first, options.first), min(end, options.runs)
        if first >= end:
            continue
        found = root_kills(options, lambda line: print(line, end="", flush=True), "--runs", options.runs, "--seed",
                           options.seed, "--from", first, "--to", end, place=place)
        total.runs += found["runs"]
        total.kills += found["kills"]
        for kind in KINDS:
            total.kinds[kind] += found.get(kind, 0)


def naive_ones_are_found(options):
    """The same runs and the same checks, of commits as somebody might have written them."""
    missed = []
    for naive, wanted in NAIVE.items():
        found = root_kills(options, lambda line: None, "--runs", NAIVE_RUNS, "--naive", naive)
        print(f"control, {naive}: {found[wanted]} {wanted} in {found['runs']} runs", flush=True)
        if found[wanted] == 0:
            missed.append(naive)
    return missed


# --- the whole server

class Holder:
    """Somebody who watches the server's calls and ends it at one of them."""

    def __init__(self, options, world):
        self.program, self.world = options.kill_at_call, world
        self.root = os.path.join(world.server.state, "root")

    def command(self, call, moment):
        return [self.program, self.root, str(call), moment]

    def hold(self, call, moment):
        self.process = subprocess.Popen(self.command(call, moment) + [str(self.world.server.process.pid)], text=True,
                                        stdout=subprocess.PIPE)
        if self.process.stdout.readline() != "held\n":
            raise PermissionError("this user may not look into the server")

    def end(self):
        """The server has ended; what the holder said."""
        return self.process.communicate(timeout=DEATH_SECONDS)[0]


def survey(options, world):
    """The calls of one erasure that nobody interrupts: (name, sectors) each."""
    fill(world)
    holder = Holder(options, world)
    holder.hold(0, "before")
    ask_one(world)
    world.check()
    world.kill()
    calls = [line.split() for line in holder.end().splitlines() if re.fullmatch(r"[a-z0-9]+ \d+", line)]
    world.start()
    return [(name, int(sectors)) for name, sectors in calls]


class Plan:
    def __init__(self, rng, calls):
        self.call = rng.randint(1, len(calls))
        sectors = calls[self.call - 1][1]
        moments = ["before", "after"]
        if sectors > 1:
            moments += [f"{end}:{rng.randrange(1, sectors)}" for end in ("head", "tail") for _ in range(2)]
        self.moment = rng.choice(moments)
        self.recovery = rng.randint(1, RECOVERY_CALLS) if rng.random() < 0.4 else None
        self.recovery_moment = rng.choice(["before", "after", "head:1", "tail:3"])

    def __str__(self):
        again = f", then {self.recovery_moment} call {self.recovery} of the recovery" if self.recovery else ""
        return f"{self.moment} call {self.call}{again}"


def killed_in_recovery(options, world, plan):
    holder = Holder(options, world)
    world.server.spawn(under=holder.command(plan.recovery, plan.recovery_moment) + ["--"])
    dead = world.server.wait_dead(DEATH_SECONDS)
    if not dead:
        world.server.process.terminate()
    return world.server.process.wait() == 0


def one_of_the_server(options, world, plan):
    """How often it was killed where the plan said."""
    fill(world)
    loot = Loot(world)
    holder = Holder(options, world)
    holder.hold(plan.call, plan.moment)
    try:
        ask_one(world)
    except Gone:
        pass
    own = world.server.wait_dead(DEATH_SECONDS)
    world.kill()
    holder.end()
    kills = int(own)
    if plan.recovery:
        kills += killed_in_recovery(options, world, plan)
    world.start()
    world.check()
    loot.check()
    return kills


class OfTheServer:
    def __init__(self, options, total):
        self.options, self.total = options, total
        self.tools = Tools(options.kvrun, options.verify, options.attack)
        self.cluster, self.world, self.calls = Cluster(), None, None

    def fresh_world(self, number):
        if self.world:
            self.world.end()
            self.world.remove()
        self.world = World(self.tools, self.cluster, f"k{number}")
        if self.calls is None:
            self.calls = survey(self.options, self.world)
            print(f"{len(self.calls)} calls on the root's file in an erasure: "
                  + ", ".join(f"{n} {name}" for name, n in collections.Counter(c[0] for c in self.calls).items()), flush=True)

    def one(self, number):
        if self.world is None or number % RUNS_OF_A_WORLD == 0:
            self.fresh_world(number)
        plan = Plan(random.Random(f"{self.options.seed}/{number}"), self.calls)
        begun, ledger = time.monotonic(), self.world.ledger
        try:
            self.total.kills += one_of_the_server(self.options, self.world, plan)
        except PermissionError:
            raise
        except Exception:
            ledger.violate(traceback.format_exc())
        self.total.runs += 1
        self.total.kinds.update(ledger.kinds)
        print(f"run {number} of the server: {plan}: {'FAILED' if ledger.violations else 'good'} "
              f"[{time.monotonic() - begun:.1f} s]", flush=True)
        if ledger.violations:
            print_violations(self.world)
            print(self.world.server.log_tail())
        return not ledger.violations

    def run(self):
        try:
            for number in range(self.options.server_from, self.options.server_runs):
                if not self.one(number):
                    return
            if self.world:
                self.world.end()
        finally:
            if self.world:
                self.world.remove()
            self.cluster.remove()


def run_all(options):
    total = Sum()
    missed = naive_ones_are_found(options)
    of_the_provider(options, total)
    if options.server_runs > options.server_from:
        OfTheServer(options, total).run()
    for naive in missed:
        print(f"control, {naive}: not found")
    print(total)
    return 0 if total.good() and not missed else 1


def main():
    options = arguments()
    if programs_missing():
        return SKIP
    try:
        return run_all(options)
    except PermissionError as error:
        print(error, file=sys.stderr)
        return SKIP


if __name__ == "__main__":
    sys.exit(main())
