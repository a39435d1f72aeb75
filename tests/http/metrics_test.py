"""Metrics: clean by every tool, complete from the first second, negotiated, and no more of them after any traffic."""
import datetime
import http.client
import pathlib
import re
import shutil
import subprocess
import threading
import time
import urllib.parse

import contract
import rig
from engine import Engine
from exposition import Exposition, strict

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
CHECKS = ("db", "migrations", "root_key", "anchor", "audit", "lease", "tiers", "shutdown")
TRACE = "0af7651916cd43dd8448eb211c80319c"

# What scrapers send, and what they must get: 0.0.4, OpenMetrics, or 406. The first three are Prometheus 2.5, 2.42 and 3.
ACCEPT = [
    ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", TEXT),
    ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
     "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPEN),
    ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
     "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", OPEN),
    (None, TEXT), ("", TEXT), ("*/*", TEXT), ("text/*", TEXT), ("text/plain", TEXT), ("text/plain;version=0.0.4", TEXT),
    ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", TEXT),  # a browser
    ("application/openmetrics-text", OPEN), ("application/openmetrics-text;version=1.0.0", OPEN),
    ("APPLICATION/OpenMetrics-Text; Version=\"1.0.0\" ; Q=1", OPEN),
    ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.9", TEXT),
    ("text/plain;q=0.9,application/openmetrics-text;q=0.5", TEXT),
    ("application/openmetrics-text;q=0.9,text/plain;q=0.9", OPEN),
    ("application/openmetrics-text;q=0,text/plain", TEXT), ("application/openmetrics-text;q=0.0,*/*", TEXT),
    ("application/openmetrics-text;q=0.001", OPEN), ("application/openmetrics-text,text/plain;q=0", OPEN),
    ("text/plain;q=0,*/*", None), ("text/plain;version=9", None), ("*/*;q=0", None), ("application/json", None),
    ("application/openmetrics-text;version=2.0.0", None), ("application/openmetrics-text;q=0", None),
    ("application/openmetrics-text;q=2,text/plain", TEXT), ("application/openmetrics-text;q=x,text/plain;q=0.1", TEXT),
    (",,;;q=,text/plain", TEXT),
]


class MetricsSuite(rig.Suite):
    def scrape(self, accept=None):
        answer = self.server.call("GET", "/metrics", admin=True, headers={"Accept": accept} if accept else None)
        self.assertEqual(answer.status, 200, answer)
        return Exposition(answer.body.decode())


class Metrics(MetricsSuite):
    def test_a_families_are_there_before_anything_happened(self):
        found = self.scrape()
        for name in ("kvrun_http_requests_total", "kvrun_integrity_failures_total", "kvrun_erasures_total",
                     "kvrun_transfer_blocks_total", "kvrun_auth_failures_total", "kvrun_db_reconnects_total",
                     "kvrun_log_messages_total", "kvrun_tier_io_errors_total", "kvrun_http_rejects_total"):
            self.assertIn(name, found.types)
            self.assertGreater(len([s for s in found.samples if s.startswith(name)]), 1, name)
        # One of each label's values that there are; rig.Suite sees at its end that none was added.
        source = pathlib.Path(rig.options.source)
        names = re.findall(r'^KV_TX\(\w+, "([a-z-]+)"\)$', (source / "server/store/tx.def").read_text(), re.M)
        self.assertEqual({s for s in found.samples if s.startswith("kvrun_db_transactions_total")},
                         {f'kvrun_db_transactions_total{{name="{name}",outcome="{outcome}"}}' for name in names
                          for outcome in ("commit", "retry", "conflict", "error")})
        for stage in ("fence", "rekey", "destroy", "verify", "certify", "total"):
            self.assertEqual(found.value(f'kvrun_erasure_duration_seconds_count{{stage="{stage}"}}'), 0)
        for action in ("offload", "restore", "lookup", "session", "erase"):
            self.assertEqual(found.value(f'kvrun_policy_decisions_total{{action="{action}",decision="allow",reason=""}}'), 0)
        for kind in ("vllm", "sglang", "llamacpp", "other"):
            self.assertEqual(found.value(f'kvrun_engine_lease_expiries_total{{kind="{kind}"}}'), 0)

    def test_the_readme_lists_every_family_as_it_is(self):
        rows = re.findall(r"^\| `((?:kvrun|process)_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \| ([^|]+) \|$",
                          pathlib.Path(rig.options.source, "server/README.md").read_text(), re.M)
        text, opened = self.scrape(), self.scrape("application/openmetrics-text")
        listed = {name: (kind, unit.strip(), what.strip()) for name, kind, _, unit, what in rows}
        self.assertEqual(len(listed), len(rows), "a family is listed twice")
        units = {name: opened.units.get(re.sub("_total$", "", name), "") for name in text.types}
        self.assertEqual(listed, {name: (kind, units[name], text.helps[name]) for name, kind in text.types.items()})
        for name, _, labels, _, _ in rows:
            self.assertLessEqual(text.labels[name], set(labels.replace("`", "").replace(",", " ").split()), name)

    def test_promtool_finds_nothing(self):
        promtool = shutil.which("promtool")
        if promtool is None:
            self.skipTest("promtool is not installed")
        done = subprocess.run([promtool, "check", "metrics"], input=self.scrape().text, text=True, capture_output=True,
                              check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_the_strictest_parser_takes_openmetrics(self):
        self.server.call("GET", "/v1/tiers", self.server.operator, headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
        found = self.scrape("application/openmetrics-text")
        done = strict(found.text)
        if done is None:
            self.skipTest("python3-prometheus-client is not installed")
        self.assertEqual(done[0], 0, done[1])
        self.assertEqual(len(done[1].splitlines()), len(found.types))
        # Controls: what it must refuse, or it shows nothing.
        self.assertNotEqual(strict(found.text.replace("# EOF\n", ""))[0], 0)
        self.assertNotEqual(strict(found.text.replace('le="+Inf"', 'le="99.0"', 1))[0], 0)

    def test_no_sample_comes_twice_and_no_family_is_split(self):
        for accept in ("text/plain", "application/openmetrics-text"):
            found = self.scrape(accept)
            self.assertEqual(found.duplicates, [])
            self.assertEqual(len(re.findall("^# TYPE ", found.text, re.M)), len(found.types))
            order = [found.family(line.split("{")[0].split(" ")[0]) for line in found.text.splitlines()
                     if not line.startswith("#")]
            runs = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
            self.assertEqual(len(runs), len(set(runs)), "a family in two places")

    def test_both_formats_have_the_same_series(self):
        text, opened = self.scrape(), self.scrape("application/openmetrics-text")
        self.assertEqual(text.samples.keys(), opened.samples.keys())
        self.assertEqual({re.sub("_total$", "", name) for name in text.types}, set(opened.types))
        self.assertTrue(opened.text.endswith("\n# EOF\n"))
        self.assertNotIn("# EOF", text.text)
        self.assertNotIn("# UNIT", text.text)

    def test_the_format_is_the_one_that_was_asked_for(self):
        for accept, expected in ACCEPT:
            with self.subTest(accept=accept):
                connection = http.client.HTTPConnection("127.0.0.1", self.server.admin_port, timeout=30)
                connection.putrequest("GET", "/metrics", skip_accept_encoding=True)
                if accept is not None:
                    connection.putheader("Accept", accept)
                connection.putheader("Accept-Encoding", "gzip, identity;q=0")  # it is not compressed, whoever wishes it
                connection.endheaders()
                answer = connection.getresponse()
                body = answer.read().decode()
                connection.close()
                self.assertEqual(answer.status, 200 if expected else 406, body[:200])
                self.assertEqual(answer.headers["Content-Type"], expected or "application/problem+json")
                self.assertIsNone(answer.headers["Content-Encoding"])
                self.assertEqual(body.endswith("# EOF\n"), expected == OPEN)
                self.assertEqual("trace_id=" in body and expected != OPEN, False)

    def test_exemplars_carry_the_trace_in_openmetrics_only(self):
        self.server.call("GET", "/v1/tiers", self.server.operator, headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
        opened, text = self.scrape("application/openmetrics-text"), self.scrape()
        found = [series for series, exemplar in opened.exemplars.items() if f'trace_id="{TRACE}"' in exemplar]
        self.assertTrue(any('route="/v1/tiers"' in series for series in found), opened.exemplars)
        self.assertEqual(text.exemplars, {})
        self.assertNotIn(TRACE, text.text)

    def test_checks_that_pass_are_1(self):
        found = self.scrape()
        for check in CHECKS:
            self.assertEqual(found.value(f'kvrun_ready{{check="{check}"}}'), 1, check)
        lines = self.server.call("GET", "/readyz").body.decode().splitlines()
        self.assertEqual([line.split()[0] for line in lines], [f"[+]{c}" for c in CHECKS])

    def test_the_process_is_described(self):
        found = self.scrape()
        self.assertLess(abs(time.time() - found.value("process_start_time_seconds")), 300)
        self.assertLess(abs(time.time() - found.value("kvrun_start_time_seconds")), 300)
        self.assertGreater(found.value("process_resident_memory_bytes"), 10e6)
        self.assertGreater(found.value("process_cpu_seconds_total"), 0)
        self.assertGreater(found.value("process_open_fds"), 10)
        self.assertGreaterEqual(found.value("process_max_fds"), found.value("process_open_fds"))
        self.assertRegex(found.text, r'kvrun_build_info\{version="[^"]+",revision="[^"]+"\} 1\n')
        self.assertRegex(found.text, r'kvrun_info\{io_engine="\w+",device="host",seal_path="host",cipher="[\w-]+"\} 1\n')

    def test_requests_and_refusals_are_counted(self):
        before = self.scrape()
        self.server.call("GET", "/v1/tiers")
        self.server.call("GET", "/%00")
        self.server.call("GET", "/v1/tiers", self.server.operator)
        self.server.call("GET", "/v1/tiers", "nonsense")
        self.server.call("GET", "/v1/tiers", self.server.operator[:-1] + "x")
        after = self.scrape()
        for series, more in (('kvrun_http_rejects_total{reason="auth"}', 3),
                             ('kvrun_http_rejects_total{reason="framing"}', 1),
                             ('kvrun_auth_failures_total{reason="missing",method="token"}', 1),
                             ('kvrun_auth_failures_total{reason="malformed",method="token"}', 2),
                             ('kvrun_http_requests_total{method="other",route="other",code="4xx"}', 1)):
            self.assertEqual(after.value(series), before.value(series) + more, series)
        self.assertEqual(after.sum("kvrun_http_requests_total", route="/v1/tiers", code="4xx") -
                         before.sum("kvrun_http_requests_total", route="/v1/tiers", code="4xx"), 3)

    def test_transfers_lookups_and_erasures_are_counted(self):
        tenant = self.server.tenant("metrics")
        token, admin = self.server.key(tenant, "engine"), self.server.key(tenant, "tenant_admin")
        engine = Engine(self.server, token).open_pool()
        session = self.server.session(token)
        engine.fill(0, "x")
        before = self.scrape()
        engine.offload(session, ["x"], [0])
        engine.restore(session, ["x"], [1])
        after = self.scrape()
        for direction in ("offload", "restore"):
            series = f'kvrun_transfer_bytes_total{{direction="{direction}"}}'
            self.assertEqual(after.value(series), before.value(series) + 8192)
        self.assertGreater(after.value("kvrun_prefill_saved_tokens_total"), before.value("kvrun_prefill_saved_tokens_total"))
        self.assertEqual(after.sum("kvrun_policy_decisions_total", action="offload", decision="allow"),
                         before.sum("kvrun_policy_decisions_total", action="offload", decision="allow") + 1)
        done = self.server.patient("POST", "/v1/erasures", admin, {"scope": {"session_id": session}},
                                   headers={"Prefer": "wait=30"})
        self.assertIn(done.status, (200, 201, 202), done)
        series = 'kvrun_erasures_total{scope="session",outcome="certified"}'
        rig.wait_for("the erasure's count", lambda: self.scrape().value(series) == before.value(series) + 1)
        last = self.scrape()
        for stage in ("fence", "rekey", "destroy", "verify", "certify", "total"):
            self.assertGreaterEqual(last.value(f'kvrun_erasure_duration_seconds_count{{stage="{stage}"}}'), 1, stage)
        # By tenant and in total the numbers agree.
        for name in ("transfer_bytes_total", "prefill_saved_tokens_total"):
            self.assertEqual(last.sum(f"kvrun_tenant_{name}"), last.sum(f"kvrun_{name}"), name)
        self.assertEqual(last.sum("kvrun_tenant_erasures_total"), last.sum("kvrun_erasures_total", outcome="certified"))

    def test_erasures_are_counted_by_what_was_meant(self):
        tenant = self.server.tenant("meant")
        admin = self.server.key(tenant, "tenant_admin")
        before = self.scrape()

        def count(scrape, scope, outcome="certified"):
            return scrape.value(f'kvrun_erasures_total{{scope="{scope}",outcome="{outcome}"}}')
        for scope, meant in (("label", {"label": {"count": "me"}}), ("idle", None), ("tenant", {"tenant_id": tenant})):
            sessions = 2
            for _ in range(sessions):
                answer = self.server.call("POST", "/v1/sessions", admin, {"model": {"id": "m", "revision": "r"},
                                                                          "labels": {"count": "me"}})
                self.assertEqual(answer.status, 201, answer)
            meant = meant or {"idle_before": self.now()}  # after they were made
            answer = self.server.patient("POST", "/v1/erasures", admin, {"scope": meant}, headers={"Prefer": "wait=30"})
            self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)
            added = 1 if scope == "tenant" else sessions  # a tenant goes in one step
            rig.wait_for("the count", lambda: count(self.scrape(), scope) == count(before, scope) + added)
        self.assertEqual(count(self.scrape(), "session"), count(before, "session"))
        for verb in ("DELETE", "POST"):
            answer = self.server.call(verb, f"/v1/tenants/{tenant}" + (":restore" if verb == "POST" else ""), self.server.operator)
            self.assertIn(answer.status, (200, 202), answer)
        self.assertEqual(count(self.scrape(), "tenant", "canceled"), count(before, "tenant", "canceled") + 1)
        again = self.server.call("POST", f"/v1/tenants/{tenant}:restore", self.server.operator)
        self.assertEqual(again.code, "invalid_state")
        self.assertEqual(count(self.scrape(), "tenant", "canceled"), count(before, "tenant", "canceled") + 1)

    @staticmethod
    def now():
        return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def test_what_the_database_has_is_counted_now_and_then(self):
        tenant = self.server.tenant("counted")
        self.server.session(self.server.key(tenant, "engine"))
        found = rig.wait_for("a tenant's own label", lambda: self.labelled("counted"))
        self.assertEqual(found.sum("kvrun_tenant_sessions"), found.value('kvrun_sessions{state="active"}'))
        self.assertGreaterEqual(found.value('kvrun_tenants{state="active"}'), 1)

    def labelled(self, name):
        found = self.scrape()
        return found if f'kvrun_tenant_sessions{{tenant="{name}"}}' in found.samples else None

    def test_scrapes_at_once_agree(self):
        results = []
        self.scrape()
        threads = [threading.Thread(target=lambda: results.append(self.scrape().samples.keys())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 8)
        self.assertTrue(all(result == results[0] for result in results))


class Budget(MetricsSuite):
    """Series are bounded by what is in the source and by metrics.tenant_max, whatever is asked for."""
    server_options = ("--metrics.tenant_max=5", "--rate.default=0", "--rate.public=1000000")

    def everything(self):
        """Every route once, with ids that are none."""
        for row in contract.route_table(rig.options.source):
            path = row.pattern.replace("{}", "x0")
            admin = "api" not in row.listeners
            path += "?poll=1&wait_seconds=0" if path == "/v1/events" else ""  # else it is a stream without an end
            self.server.call(row.method, path, self.server.operator, b"{}" if row.method in ("POST", "PUT") else None,
                             admin=admin, check=False)

    def test_paths_make_no_series_and_every_route_stays_within_the_budget(self):
        self.scrape()
        before = self.scrape()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        for number in range(2000):
            connection.request("GET", "/" + urllib.parse.quote(f"random/{number}/{number ** 7}"))
            self.assertEqual(connection.getresponse().read(4) != b"", True)
        connection.close()
        self.assertEqual(self.series(), self.series(before))
        self.everything()
        after = self.scrape()
        for number in range(300):
            self.server.call("GET", f"/v1/sessions/ses_{number:026d}", check=False)
        self.assertEqual(self.series(), self.series(after))
        self.assertLessEqual(len(after.samples) + 45 * self.of_one_tenant(after), 4000)

    def series(self, found=None):
        return (found or self.scrape()).samples.keys()

    def of_one_tenant(self, found):
        return len([series for series in found.samples if 'tenant="_other"' in series])

    def test_tenants_make_as_many_labels_as_there_may_be(self):
        for number in range(12):
            self.server.tenant(f"many-{number}")
        found = rig.wait_for("the labels", self.full)
        names = set(re.findall(r'tenant="([^"]+)"', found.text))
        self.assertEqual(len(names), 6)
        self.assertIn("_other", names)

    def full(self):
        found = self.scrape()
        return found if len(set(re.findall(r'tenant="([^"]+)"', found.text))) >= 6 else None

    def test_no_label_has_what_a_client_chose(self):
        self.server.call("GET", "/v1/sessions?label=planted:value", headers={"X-Request-Id": "planted-request"}, check=False)
        self.server.call("PLANTED", "/planted", check=False)
        self.assertNotIn("planted", self.scrape().text.lower())


class WithoutTenants(MetricsSuite):
    server_options = ("--metrics.tenant_label=off", "--metrics.exemplars=false", "--metrics.auth=true")

    def test_a_key_is_asked_for_and_no_tenant_is_named(self):
        def get(token=None):
            return self.server.call("GET", "/metrics", token, admin=True)

        self.assertEqual(get().status, 401)
        tenant = self.server.tenant("not-shown")
        self.assertEqual(get(self.server.key(tenant, "engine")).status, 403)
        answer = get(self.server.operator)
        self.assertEqual(answer.status, 200)
        found = Exposition(answer.body.decode())
        self.assertNotIn("tenant=", found.text)
        self.assertLessEqual(len([s for s in found.samples if "route=" not in s or 'route="other"' in s]), 1000)
        opened = self.server.call("GET", "/metrics", self.server.operator, admin=True, headers={
            "Accept": "application/openmetrics-text", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
        self.assertNotIn("trace_id", opened.body.decode())


if __name__ == "__main__":
    rig.main(__name__)
