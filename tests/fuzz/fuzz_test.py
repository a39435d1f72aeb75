#!/usr/bin/env python3
"""Runs the fuzzer of policies: fuzz_test.py TARGET SOURCE. Ten seconds, ten minutes with KV_LONG.

Its seeds are the policies and questions of policies/vectors. An input that breaks something is printed.
"""
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TARGET, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
SECONDS = 600 if os.environ.get("KV_LONG") else 10
MOST_BYTES = 8192


def seeds():
    """Texts of policies, of those that are refused too, and of questions."""
    yield (SOURCE / "policies/example.json").read_text()
    for file in sorted((SOURCE / "policies/vectors").glob("*.json")):
        table = json.loads(file.read_text())
        parts = [table.get("platform"), table.get("tenant")]
        parts += [case["ask"] for case in table.get("cases", [])] + [case["policy"] for case in table.get("invalid", [])]
        for part in parts:
            if part is not None:
                yield part if isinstance(part, str) else json.dumps(part)


def words(texts):
    """The dictionary: every quoted word of the seeds."""
    found = {word for text in texts for word in re.findall(r'"([a-z0-9_-]{2,40})"', text)}
    return "".join(f'"\\"{word}\\""\n' for word in sorted(found))


class Fuzz(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.corpus = self.folder / "corpus"
        self.corpus.mkdir()
        texts = list(seeds())
        self.assertGreater(len(texts), 60, "the tables of cases are not where they were")
        for number, text in enumerate(texts):
            (self.corpus / f"seed-{number:03}").write_text(text)
        (self.folder / "words").write_text(words(texts))

    def run_target(self, *arguments, **variables):
        return subprocess.run(
            [TARGET, f"-artifact_prefix={self.folder}/", f"-dict={self.folder}/words", f"-max_len={MOST_BYTES}",
             "-timeout=20", "-rss_limit_mb=1024", "-print_final_stats=1", *arguments, self.corpus],
            capture_output=True, text=True, errors="replace", timeout=SECONDS + 240, env={**os.environ, **variables})

    def test_nothing_breaks(self):
        ran = self.run_target(f"-max_total_time={SECONDS}")
        broken = [base64.b64encode(file.read_bytes()).decode() for file in self.folder.glob("*-*") if file.is_file()]
        self.assertEqual((ran.returncode, broken), (0, []), ran.stderr[-3000:])
        accepted = re.search(r"accepted: (\d+) policies, (\d+) questions", ran.stderr)
        self.assertGreater(int(accepted[1]), 10, "hardly a policy was accepted: the seeds are of no use")
        self.assertGreater(int(accepted[2]), 10)
        print(accepted[0], re.search(r"number_of_executed_units: \d+", ran.stderr)[0])

    def test_a_planted_fault_is_found(self):
        ran = self.run_target("-runs=0", KVT_PLANTED="1")
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("the planted fault", ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
