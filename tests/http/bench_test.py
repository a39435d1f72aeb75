#!/usr/bin/env python3
"""`kvrun bench erase --json --quick`: one object of the form that the bench's README describes, whatever the machine can."""

import json
import subprocess
import unittest

import rig

TIMEOUT_S = 500  # it starts a database of its own
GOALS = {"smallest_p50_ms": ("most", 50), "smallest_p99_ms": ("most", 250), "largest_p50_ms": ("most", 50),
         "largest_p99_ms": ("most", 250), "largest_to_smallest_ratio": ("most", 1.5),
         "batched_certified_per_s": ("least", 500), "restore_delay_p99_ms": ("most", 5)}


class Bench(unittest.TestCase):
    def test_erase_says_what_it_measured_and_which_goals_are_met(self):
        run = subprocess.run([rig.options.kvrun, "bench", "erase", "--json", "--quick"], capture_output=True, text=True,
                             timeout=TIMEOUT_S)
        self.assertIn(run.returncode, (0, 1), run.stderr)
        result = json.loads(run.stdout)
        self.assertEqual(sorted(result), ["figures", "goals", "name", "noise", "pairs"])
        self.assertEqual(result["name"], "erase")
        goals = {goal["name"]: goal for goal in result["goals"]}
        for name, (at, bound) in GOALS.items():
            goal = goals[name]
            self.assertEqual((goal["at"], goal["goal"]), (at, bound), name)
            met = goal["value"] <= bound if at == "most" else goal["value"] >= bound
            self.assertEqual(goal["met"], met, name)
            self.assertEqual(result["figures"][name], goal["value"])
        self.assertEqual(run.returncode, 0 if all(goal["met"] for goal in result["goals"]) else 1)
        self.assertGreater(result["figures"]["batched_certified_per_s"], 0)
        self.assertTrue(all(pair["base"] > 0 and pair["value"] > 0 for pair in result["pairs"]))

    def test_what_is_no_option_is_refused(self):
        run = subprocess.run([rig.options.kvrun, "bench", "erase", "--quicker"], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 2)


if __name__ == "__main__":
    rig.main(__name__)
