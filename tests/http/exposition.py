"""What a scrape says: samples, families, and what no tool complains about but a server chokes on. Where the Python that
runs the tests has no prometheus_client, the system's Python is asked: it is a Debian package."""
import collections
import re
import subprocess
import sys

SAMPLE = re.compile(r'^([A-Za-z_:][\w:]*)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})? (\S+)(?: # (\{[^}]*\} \S+ \S+))?$')
LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
SUFFIX = re.compile(r"_(bucket|sum|count)$")
STRICT = """
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    print(family.name, family.type, family.unit or "-", len(family.samples))
"""


class Exposition:
    """Reads either format. `types` and `helps` by family as it is named there; `samples` by name and labels."""

    def __init__(self, text):
        self.text = text
        self.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
        self.helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.M))
        self.units = dict(re.findall(r"^# UNIT (\S+) (\S+)$", text, re.M))
        self.samples, self.duplicates, self.exemplars = {}, [], {}
        self.labels = collections.defaultdict(set)
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            found = SAMPLE.match(line)
            assert found, f"no sample: {line}"
            name, labels, value, exemplar = found.groups()
            series = name + (labels or "")
            if series in self.samples:
                self.duplicates.append(series)
            self.samples[series] = float(value)
            if exemplar:
                self.exemplars[series] = exemplar
            self.labels[self.family(name)].update(key for key, _ in LABEL.findall(labels or "") if key != "le")

    def family(self, name):
        """The family of a sample, by its name in the text format."""
        base = SUFFIX.sub("", name)
        return base if self.types.get(base) == "histogram" else name

    def value(self, series):
        return self.samples[series]

    def sum(self, name, **labels):
        """Over the samples of a name that have these labels."""
        return sum(value for series, value in self.samples.items() if series.split("{")[0] == name and
                   labels.items() <= dict(LABEL.findall(series)).items())


def python_with_client():
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run([python, "-c", "import prometheus_client.openmetrics.parser"], check=True, capture_output=True)
            return python
        except (OSError, subprocess.CalledProcessError):
            continue
    return None


def strict(text):
    """(exit status, what was said) of the strictest parser of OpenMetrics there is; None where it is not installed."""
    python = python_with_client()
    if python is None:
        return None
    done = subprocess.run([python, "-c", STRICT], input=text, text=True, capture_output=True, check=False)
    return done.returncode, done.stdout + done.stderr
