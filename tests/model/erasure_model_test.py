"""
Walks through the model: the protocol as it is holds in all of them, and each way to build it wrong is found.

  erasure_model_test.py --seed N [--fault NAME]   one walk, told step by step
"""
import argparse
import os
import unittest

from erasure import CLIMATES, FAULTS, Broken, World

STEPS = 150
WALKS = 300_000 if os.environ.get("KV_LONG") else 5_000
SEARCH = 20_000  # walks until a fault must have been found

START = "renew 0, renew 1, make_begin 1, make_end 1, "
FENCED = "take_over 0, " + 4 * "erase 0, "  # looked, recovered, a job begun, its fence passed

# What chance comes to once in ten thousand walks is walked on purpose.
SCRIPTS = {
    "late_open": "renew 0, make_begin 0, make_end 0, renew 1, open_begin 1, request 0, renew 0, renew 1, " + FENCED +
                 "open_end 1, use 1",
    "no_wipe_at_deadline": START + "request 0, renew 0, part 1, take_over 0, erase 0, erase 0, erase 0, " + 4 * "tick 0, renew 0, " +
                           6 * "erase 0, " + 4 * "tick 0, renew 0, " + 4 * "erase 0, ",
    "discard_unnamed": START + "request 0, renew 0, renew 1, " + FENCED + "erase 0, crash 0, renew 0, take_over 0, erase 0, erase 0, "
                       "take_over 1, " + 7 * "erase 1, " + "erase 0, take_over 1, erase 1, erase 1",
}


def walk(seed, fault=None, climate=None, script=None):
    """What broke, or None, and the steps."""
    world = World(seed, fault, climate)
    try:
        if script:
            for line in script.strip(", ").split(", "):
                name, i = line.split()
                world.step(name, int(i))
        else:
            world.walk(STEPS)
    except Broken as broken:
        return f"seed {seed}: {broken}", world
    return None, world


class Model(unittest.TestCase):
    def test_what_is_certified_stays_closed_and_what_lives_opens(self):
        for seed in range(WALKS):
            broken, world = walk(seed)
            self.assertIsNone(broken, world.trace)

    def test_walks_come_to_everything_that_happens(self):
        """Or they would show nothing."""
        happened, certified, quarantines = set(), 0, 0
        for seed in range(500):
            _, world = walk(seed)
            happened |= {line.split()[0] for line in world.trace}
            certified += len(world.certified)
            quarantines += world.quarantines
        self.assertEqual(happened, set(World.EVENTS) - {"request_commit"})  # a step of its own only where it is built wrong
        self.assertGreater(certified, 100)
        self.assertGreater(quarantines, 3)

    def test_every_way_to_build_it_wrong_is_found(self):
        for fault, (what, climate) in FAULTS.items():
            with self.subTest(fault=fault):
                seeds = range(100 if fault in SCRIPTS else SEARCH)
                found = next(filter(None, (walk(seed, fault, climate, SCRIPTS.get(fault))[0] for seed in seeds)), None)
                self.assertIsNotNone(found, f"nothing broke although {what}")
                print(f"{fault}: {found}")

    def test_the_scripts_break_nothing_where_nothing_is_wrong(self):
        for fault, script in SCRIPTS.items():
            for seed in range(100):
                self.assertIsNone(walk(seed, script=script)[0], fault)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--fault", choices=FAULTS)
    options, rest = parser.parse_known_args()
    if options.seed is None:
        unittest.main(argv=["erasure_model_test.py"] + rest, verbosity=1)
    else:
        what, told = walk(options.seed, options.fault)
        print("\n".join(told.trace))
        print(what or "holds")
