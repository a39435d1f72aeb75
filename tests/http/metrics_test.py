"""Metrics: clean by promtool, complete from the first second, and no more of them after any amount of traffic."""
import re
import shutil
import subprocess
import threading
import time

import rig
from engine import Engine

FAMILIES = {
    "kvrun_http_requests_total": "counter", "kvrun_http_request_duration_seconds": "histogram",
    "kvrun_http_rejects_total": "counter", "kvrun_ready": "gauge", "kvrun_build_info": "gauge",
    "process_start_time_seconds": "gauge", "process_resident_memory_bytes": "gauge",
    "kvrun_transfer_bytes_total": "counter", "kvrun_transfer_duration_seconds": "histogram",
}


class Metrics(rig.Suite):
    def scrape(self):
        answer = self.server.call("GET", "/metrics", admin=True)
        self.assertEqual(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
        return answer.body.decode()

    @staticmethod
    def series(text):
        return {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}

    @staticmethod
    def value(text, series):
        return float(next(line for line in text.splitlines() if line.startswith(series + " ")).rsplit(" ", 1)[1])

    def test_a_families_are_there_before_anything_happened(self):
        text = self.scrape()
        types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
        for name, kind in FAMILIES.items():
            self.assertEqual(types.get(name), kind, name)
            self.assertRegex(text, rf"(?m)^# HELP {name} \S")

    def test_promtool_finds_nothing(self):
        promtool = shutil.which("promtool")
        if promtool is None:
            self.skipTest("promtool is not installed")
        done = subprocess.run([promtool, "check", "metrics"], input=self.scrape(), text=True, capture_output=True,
                              check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_checks_that_pass_are_1(self):
        text = self.scrape()
        for check in ("db", "migrations", "root_key", "audit", "lease", "tiers", "shutdown"):
            self.assertEqual(self.value(text, f'kvrun_ready{{check="{check}"}}'), 1, check)
        lines = self.server.call("GET", "/readyz").body.decode().splitlines()
        self.assertEqual([line.split()[0] for line in lines],
                         [f"[+]{c}" for c in ("db", "migrations", "root_key", "audit", "lease", "tiers", "shutdown")])

    def test_the_process_is_described(self):
        text = self.scrape()
        self.assertLess(abs(time.time() - self.value(text, "process_start_time_seconds")), 120)
        self.assertGreater(self.value(text, "process_resident_memory_bytes"), 10e6)
        self.assertRegex(text, r'kvrun_build_info\{version="[^"]+",revision="[^"]+"\} 1\n')

    def test_requests_and_refusals_are_counted(self):
        before = self.scrape()
        self.server.call("GET", "/v1/tiers")
        self.server.call("GET", "/%00")
        self.server.call("GET", "/v1/tiers", self.server.operator)
        after = self.scrape()
        for series in ('kvrun_http_rejects_total{reason="auth"}', 'kvrun_http_rejects_total{reason="guard"}'):
            self.assertEqual(self.value(after, series), self.value(before, series) + 1, series)
        self.assertGreater(self.value(after, 'kvrun_http_requests_total{code="2xx"}'),
                           self.value(before, 'kvrun_http_requests_total{code="2xx"}'))

    def test_transfers_are_counted_in_bytes(self):
        tenant = self.server.tenant("metrics")
        token = self.server.key(tenant, "engine")
        engine = Engine(self.server, token).open_pool()
        session = self.server.session(token)
        engine.fill(0, "x")
        series = 'kvrun_transfer_bytes_total{direction="offload"}'
        before = self.value(self.scrape(), series)
        engine.offload(session, ["x"], [0])
        self.assertEqual(self.value(self.scrape(), series), before + 8192)

    def test_traffic_makes_no_series(self):
        before = self.series(self.scrape())
        for number in range(200):
            self.server.call("GET", f"/v1/sessions/path{number}", check=False)
            self.server.call("GET", f"/random/{number}", check=False)
        self.assertEqual(self.series(self.scrape()), before)

    def test_scrapes_at_once_agree(self):
        results = []
        threads = [threading.Thread(target=lambda: results.append(self.series(self.scrape()))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 8)
        self.assertTrue(all(result == results[0] for result in results))


if __name__ == "__main__":
    rig.main(__name__)
