"""A real Prometheus scrapes a real server; every expression of the alerts and dashboards is asked, every metric exists."""
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request

import rig
from engine import Engine
from exposition import Exposition

NAME = re.compile(r"\b(?:kvrun|process|scrape)_\w+\b|\bup\b")
OWN = {"up", "scrape_samples_scraped"}  # Prometheus makes these
UNITS = {"none", "s", "bytes", "Bps", "ops", "reqps", "percentunit", "dateTimeFromNow"}


def docker(*parts):
    return pathlib.Path(rig.options.source, "docker", *parts)


def dashboards():
    return {path.name: json.loads(path.read_text()) for path in sorted(docker("grafana", "dashboards").glob("*.json"))}


def alerts():
    """(name, expression, all of it) of rules.yml; folded expressions are joined as YAML does."""
    text = docker("prometheus", "rules.yml").read_text()
    for block in re.split(r"(?m)^      - alert: ", text)[1:]:
        expr = re.search(r"(?ms)^        expr: (?:>-\n)?(.*?)^        (?:for|labels|annotations):", block).group(1)
        yield block.split("\n")[0], " ".join(expr.split()), block


def expressions():
    for name, expr, _ in alerts():
        yield name, expr
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
                yield f"{name}: {panel['title']}", expr


class Files(unittest.TestCase):
    def test_dashboards_name_no_data_source_but_the_variable(self):
        self.assertEqual(len(dashboards()), 3)
        uids = set()
        for name, dashboard in dashboards().items():
            self.assertIsNone(dashboard["id"], name)
            self.assertRegex(dashboard["uid"], r"^kvrun-\w+$")
            uids.add(dashboard["uid"])
            text = json.dumps(dashboard)
            self.assertNotIn("DS_PROMETHEUS", text)
            self.assertNotIn("__inputs", text)
            self.assertEqual([v["name"] for v in dashboard["templating"]["list"] if v["type"] == "datasource"], ["datasource"])
            sources = re.findall(r'"uid": "([^"]*)"', text)
            self.assertEqual(set(sources) - {dashboard["uid"]}, {"${datasource}"}, name)
            for panel in dashboard["panels"]:
                where = f"{name}: {panel['title']}"
                self.assertTrue(panel["description"].endswith("."), where)
                self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS, where)
                self.assertIn(panel["type"], ("timeseries", "stat"), where)  # none that needs Angular
                self.assertTrue(panel["targets"], where)
        self.assertEqual(len(uids), 3)

    def test_panels_do_not_overlap_and_have_ids_of_their_own(self):
        for name, dashboard in dashboards().items():
            cells = [(x, y) for p in dashboard["panels"] for g in [p["gridPos"]]
                     for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])]
            self.assertEqual(len(cells), len(set(cells)), name)
            self.assertLess(max(x for x, _ in cells), 24, name)
            self.assertEqual(len({p["id"] for p in dashboard["panels"]}), len(dashboard["panels"]), name)

    def test_every_alert_has_its_page_and_two_cases(self):
        pages = set(re.findall(r"(?m)^### (\w+)$", docker("prometheus", "README.md").read_text()))
        cases = docker("prometheus", "rules_test.yml").read_text()
        names = [name for name, _, _ in alerts()]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(set(names), pages)
        for name, _, block in alerts():
            self.assertIn(f"runbook_url: docker/prometheus/README.md#{name.lower()}\n", block)
            for word in ("summary:", "description:", "severity:"):
                self.assertIn(word, block, name)
            self.assertIn(f"name: {name} fires", cases)
            self.assertIn(f"name: {name} stays silent", cases)

    def test_promtool_takes_the_rules_and_every_case(self):
        promtool = shutil.which("promtool")
        if promtool is None:
            self.skipTest("promtool is not installed")
        folder = docker("prometheus")
        for words in (("check", "rules", "rules.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")):
            done = subprocess.run([promtool, *words], cwd=folder, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        # The control: an alert that cannot fire any more fails its case.
        with tempfile.TemporaryDirectory() as copy:
            for path in glob.glob(str(folder / "*.yml")):
                shutil.copy(path, copy)
            rules = pathlib.Path(copy, "rules.yml")
            rules.write_text(rules.read_text().replace("kvrun_audit_lag_seconds > 30", "kvrun_audit_lag_seconds > 3000"))
            done = subprocess.run([promtool, "test", "rules", "rules_test.yml"], cwd=copy, capture_output=True, text=True, check=False)
            self.assertNotEqual(done.returncode, 0)


class Scraped(rig.Suite):
    """Prometheus in a folder of its own, on a loopback port, ended by its process id."""

    @classmethod
    def setUpClass(cls):
        binary = shutil.which("prometheus")
        if binary is None:
            raise unittest.SkipTest("prometheus is not installed")
        super().setUpClass()
        cls.folder, cls.port = tempfile.mkdtemp(prefix="kvp."), rig.free_port()
        shutil.copy(docker("prometheus", "rules.yml"), cls.folder)
        pathlib.Path(cls.folder, "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\nscrape_configs:\n"
            f"  - job_name: kvrun\n    static_configs: [{{targets: ['127.0.0.1:{cls.server.admin_port}']}}]\n")
        with open(os.path.join(cls.folder, "log"), "wb") as log:
            cls.prometheus = subprocess.Popen(
                [binary, f"--config.file={cls.folder}/prometheus.yml", f"--storage.tsdb.path={cls.folder}/data",
                 f"--web.listen-address=127.0.0.1:{cls.port}", "--storage.tsdb.retention.size=64MB"],
                cwd=cls.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @classmethod
    def tearDownClass(cls):
        cls.prometheus.send_signal(signal.SIGTERM)
        try:
            cls.prometheus.wait(20)
        except subprocess.TimeoutExpired:
            cls.prometheus.kill()
            cls.prometheus.wait()
        shutil.rmtree(cls.folder, ignore_errors=True)
        super().tearDownClass()

    def ask(self, path, **query):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)
        except OSError:
            return {}

    def query(self, expr):
        return self.ask("query", query=expr).get("data", {}).get("result", [])

    def traffic(self):
        tenant = self.server.tenant("watched")
        token, admin = self.server.key(tenant, "engine"), self.server.key(tenant, "tenant_admin")
        engine = Engine(self.server, token).open_pool()
        session = self.server.session(token)
        engine.fill(0, "x")
        engine.offload(session, ["x"], [0])
        engine.restore(session, ["x"], [1])
        self.server.call("GET", "/v1/tiers", "nonsense", headers={"traceparent": "00-" + "a1" * 16 + "-" + "b2" * 8 + "-01"})
        self.server.patient("POST", "/v1/erasures", admin, {"scope": {"session_id": session}}, headers={"Prefer": "wait=30"})

    def test_every_expression_is_answered_and_every_metric_exists(self):
        self.traffic()
        rig.wait_for("a scrape that succeeded", lambda: self.query("up == 1"))
        rig.wait_for("the erasure in Prometheus", lambda: self.query('kvrun_erasures_total{outcome="certified"} > 0'))
        self.assertEqual(self.ask("query", query="rate(")["status"], "error")  # the control: what cannot be parsed is told
        targets = self.ask("targets")["data"]["activeTargets"]
        self.assertEqual([(t["health"], t["lastError"]) for t in targets], [("up", "")])
        answer = self.server.call("GET", "/metrics", admin=True)
        known = {series.split("{")[0] for series in Exposition(answer.body.decode()).samples} | OWN
        count = 0
        for where, expr in expressions():
            with self.subTest(where=where):
                done = self.ask("query", query=expr)
                self.assertEqual(done.get("status"), "success", done)
                names = set(NAME.findall(expr))
                self.assertTrue(names)
                self.assertLessEqual(names, known)
                count += 1
        self.assertGreater(count, 60)

    def test_prometheus_has_the_rules_and_a_healthy_server_raises_nothing_that_pages(self):
        rig.wait_for("a scrape that succeeded", lambda: self.query("up == 1"))
        rig.wait_for("the rules' first round", lambda: all(
            rule["health"] == "ok" for group in self.ask("rules").get("data", {}).get("groups", [{"rules": [{"health": "no"}]}])
            for rule in group["rules"]), 60)
        rules = [rule for group in self.ask("rules")["data"]["groups"] for rule in group["rules"]]
        self.assertEqual({rule["name"] for rule in rules}, {name for name, _, _ in alerts()})
        self.assertEqual(self.query('ALERTS{alertstate="firing",severity="page"}'), [])

    def test_exemplars_and_openmetrics_are_what_was_scraped(self):
        self.traffic_once()
        rig.wait_for("a scrape that succeeded", lambda: self.query("up == 1"))
        # Prometheus 2.42 asks for OpenMetrics first: le is spelled as it is there.
        found = rig.wait_for("buckets", lambda: self.query('kvrun_service_wait_seconds_bucket{le="1.0"}'))
        self.assertEqual(len(found), 1)

    def traffic_once(self):
        self.server.call("GET", "/v1/tiers", self.server.operator)


if __name__ == "__main__":
    rig.main(__name__)
