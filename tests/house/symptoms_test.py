"""Each test that tests/README.md names beside a symptom is there. symptoms_test.py SOURCE"""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
text = (source / "tests/README.md").read_text().split("## What has gone wrong elsewhere")[1]
rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| symptom", "|---"))]
missing, count = [], 0
for row in rows:
    tests = re.findall(r"`([^`]+)`", row.rsplit("|", 2)[1])
    if not tests:
        missing.append(row)
    for name in tests:
        count += 1
        suite, colon, test = name.partition(": ")
        found = list(source.glob(f"tests/**/{suite}_test.py")) if colon else list(source.glob(f"tests/**/{name}"))
        if not any(f"def {test}(" in path.read_text() if colon else True for path in found):
            missing.append(name)
print(f"{len(rows)} symptoms, {count} tests")
for name in missing:
    print(f"not there: {name}")
sys.exit(1 if missing or len(rows) < 40 else 0)
