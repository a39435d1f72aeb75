"""What every route owes its callers: HEAD and OPTIONS, queries, media types, headers, traces, texts of errors, rates."""
import concurrent.futures
import html.parser
import json
import re
from pathlib import Path

import contract
import rig
from auth_test import example

BODIES = ("POST", "PUT", "PATCH")


class Manners(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.routes = contract.route_table(rig.options.source)
        cls.tenant = cls.server.tenant("manners")
        cls.admin, cls.engine = cls.server.key(cls.tenant, "tenant_admin"), cls.server.key(cls.tenant, "engine")
        cls.auditor, cls.officer = cls.server.key(cls.tenant, "auditor"), cls.server.key(cls.tenant, "security_officer")
        cls.session = cls.server.session(cls.engine)

    def token(self, route):
        keys = (("tenant_admin", self.admin), ("engine", self.engine), ("auditor", self.auditor),
                ("operator", self.server.operator), ("security_officer", self.officer))
        return next((key for role, key in keys if role in route.roles), None)

    def call(self, route, path=None, method=None, headers=None, **how):
        method = method or route.method
        path = path or example(route.pattern) + ("?poll=true&wait_seconds=0" if "STREAM" in route.flags else "")
        body = how.pop("body", {} if method in BODIES else None)
        kind = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        how.setdefault("admin", route.listeners == {"admin"})
        return self.server.call(method, path, self.token(route), body,
                                {**kind, **(headers or {})}, **how)

    # --- methods

    def get_and_head(self, route, names):
        """Their headers of one moment: what a route shows may change between two requests, as the log that grows."""
        for _ in range(20):
            before, head, after = self.call(route), self.call(route, method="HEAD"), self.call(route)
            if all(before.headers.get(name) == after.headers.get(name) for name in names):
                break
        return after, head

    def test_every_get_has_a_head_that_says_the_same(self):
        for route in (r for r in self.routes if r.method == "GET"):
            names = {"content-type", "content-length", "cache-control", "etag", "x-content-type-options"}
            names -= {"content-length"} if route.pattern == "/metrics" else set()
            get, head = self.get_and_head(route, names)
            self.assertEqual((head.status, head.body), (get.status, b""), route)
            for name in names:
                self.assertEqual(head.headers.get(name), get.headers.get(name), f"{route} {name}")

    def test_every_path_has_options(self):
        for route in self.routes:
            answer = self.call(route, method="OPTIONS", body=None)
            self.assertEqual((answer.status, answer.body), (204, b""), route)
            allowed = answer.headers["allow"].split(", ")
            self.assertIn(route.method, allowed)
            self.assertIn("OPTIONS", allowed)
            self.assertEqual("HEAD" in allowed, "GET" in allowed, route)
            self.assertNotIn("content-type", answer.headers)

    def test_a_method_that_a_path_does_not_take_is_told_those_that_it_does(self):
        for route in self.routes:
            options = self.call(route, method="OPTIONS", body=None).headers["allow"]
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - set(options.split(", ")):
                answer = self.call(route, method=method)
                self.assertEqual((answer.status, answer.headers["allow"]), (405, options), f"{method} {route}")

    # --- queries

    def test_a_parameter_that_a_route_does_not_have_is_named(self):
        for route in self.routes:
            answer = self.call(route, example(route.pattern) + "?no_such_thing=1")
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), route)
            self.assertIn("no_such_thing", answer.json()["detail"])
            answer = self.call(route, example(route.pattern) + "?Ab-c=1")
            self.assertEqual(answer.status, 400, route)
            self.assertNotIn("Ab-c", answer.body.decode(), "what is no name of ours may be something else")

    def test_parameters_of_flags_are_taken_where_the_flag_is(self):
        for route in self.routes:
            for flag, query in (("LIST", "limit=1"), ("LIST", "order=asc"), ("DRY_RUN", "dry_run=true")):
                answer = self.call(route, example(route.pattern) + "?" + query)
                refused = answer.status == 400 and "no query parameter" in answer.json()["detail"]
                self.assertEqual(refused, flag not in route.flags, f"{route} {query} {answer}")

    def test_queries_of_the_contract_are_those_of_the_server(self):
        if rig.contract.document is None:
            self.skipTest("needs PyYAML and jsonschema")
        manners = {"LIST": {"limit", "cursor", "order"}, "DRY_RUN": {"dry_run"}}
        tables = query_tables(rig.options.source)
        for route in self.routes:
            wanted = set().union(*(names for flag, names in manners.items() if flag in route.flags))
            wanted |= tables[route.query] if route.query != "NULL" else set()
            self.assertEqual(parameters(route, "query"), wanted, route)

    def test_headers_of_the_contract_are_those_of_the_server(self):
        if rig.contract.document is None:
            self.skipTest("needs PyYAML and jsonschema")
        flags = {"Idempotency-Key": {"ONCE", "FOR_EVER"}, "If-Match": {"MATCH"}, "Prefer": {"WAIT"}}
        for route in self.routes:
            described = parameters(route, "header")
            for name, any_of in flags.items():
                self.assertEqual(name in described, bool(any_of & route.flags), f"{route} {name}")
            statuses = rig.contract.operation(route.method, example(route.pattern))["responses"].keys()
            if "MATCH" in route.flags:
                self.assertLessEqual({"412", "428"}, statuses, route)

    def test_a_key_in_the_query_is_refused_everywhere(self):
        for route in self.routes:
            for name in ("token", "access_token", "x"):
                answer = self.call(route, f"{example(route.pattern)}?{name}=kvrun_live_1234")
                self.assertEqual((answer.status, answer.code), (400, "invalid_request"), route)
                self.assertIn("Authorization", answer.json()["detail"])
                self.assertNotIn("1234", answer.body.decode())

    # --- media types

    def test_an_accept_without_json_is_refused_where_there_is_nothing_else(self):
        for route in (r for r in self.routes if "ANY_ACCEPT" not in r.flags):
            for accept in ("image/png", "application/json;q=0, text/plain"):
                answer = self.call(route, headers={"Accept": accept})
                self.assertEqual((answer.status, answer.code), (406, "not_acceptable"), route)
            for accept in ("application/json", "application/*", "*/*", "text/html, */*;q=0.1", ""):
                self.assertNotEqual(self.call(route, headers={"Accept": accept}).status, 406, f"{route} {accept}")

    def test_a_body_of_another_type_is_told_the_right_one(self):
        for route in (r for r in self.routes if r.method in BODIES and "ANY_BODY" not in r.flags):
            wrong = "application/json" if route.method == "PATCH" else "application/merge-patch+json"
            answer = self.call(route, headers={"Content-Type": wrong})
            self.assertEqual((answer.status, answer.code), (415, "unsupported_media_type"), route)
            if route.method == "PATCH":
                self.assertEqual(answer.headers["accept-patch"], "application/merge-patch+json")
            else:
                self.assertEqual(answer.headers["accept"], "application/json")

    def test_a_body_where_none_belongs_is_refused(self):
        for route in (r for r in self.routes if r.method in ("GET", "DELETE")):
            answer = self.call(route, body={})
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), route)

    def test_if_match_is_refused_where_nothing_has_a_revision(self):
        for route in (r for r in self.routes if r.method != "GET" and "MATCH" not in r.flags):
            answer = self.call(route, headers={"If-Match": '"1"'})
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), route)
            self.assertIn("If-Match", answer.json()["detail"])

    # --- headers

    def test_every_answer_has_the_headers_that_keep_it_safe(self):
        for route in self.routes:
            for answer in (self.call(route), self.call(route, method="OPTIONS", body=None)):
                self.assertEqual(answer.headers["x-content-type-options"], "nosniff", route)
                self.assertEqual(answer.headers["referrer-policy"], "no-referrer", route)
                self.assertIn("cache-control", answer.headers)
                self.assertFalse([name for name in answer.headers if name.startswith("access-control")], route)
            if not route.public:
                self.assertEqual(self.call(route).headers["cache-control"], "no-store", route)

    def test_a_request_id_is_kept_when_it_is_harmless(self):
        for given in ("abcdefgh", "A.b-c_9" * 9 + "x", "a" * 64):
            self.assertEqual(self.server.call("GET", "/livez", headers={"X-Request-Id": given}).headers["x-request-id"],
                             given)
        for given in ("short", "a" * 65, "abcdefg h", 'abcdefg"h', "abcdefg\u00e4"):
            answer = self.server.call("GET", "/livez", headers={"X-Request-Id": given})
            self.assertRegex(answer.headers["x-request-id"], "^req_[0-9a-hjkmnp-tv-z]{26}$")

    def test_a_trace_goes_on(self):
        trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        answer = self.server.call("GET", "/v1/tiers", self.server.operator,
                                  headers={"traceparent": f"00-{trace}-{span}-01"})
        found = re.fullmatch(f"00-{trace}-([0-9a-f]{{16}})-01", answer.headers["traceparent"])
        self.assertNotEqual(found[1], span)
        for bad in (f"00-{trace}-{span}", f"00-{trace.upper()}-{span}-01", f"00-{'0' * 32}-{span}-01", "x"):
            answer = self.server.call("GET", "/livez", headers={"traceparent": bad})
            self.assertNotIn("traceparent", answer.headers, bad)

    def test_an_answer_says_where_its_time_went(self):
        answer = self.server.call("GET", f"/v1/sessions/{self.session}", self.engine)
        timing = re.fullmatch(r"q;dur=(\d+\.\d\d), auth;dur=(\d+\.\d\d), db;dur=(\d+\.\d\d), engine;dur=0\.00",
                              answer.headers["server-timing"])
        self.assertGreater(float(timing[3]), 0)
        self.assertNotIn("server-timing", self.server.call("GET", "/livez").headers)

    # --- texts of errors

    def test_every_error_of_the_registry_has_a_text(self):
        registry = re.findall(r"^KV_ERROR\((\w+),\s*(\d+)", Path(rig.options.source, "api/errors.def").read_text(), re.M)
        listed = self.server.call("GET", "/problems").json()["data"]
        self.assertEqual([(row["code"], row["status"]) for row in listed],
                         [(name.lower(), int(status)) for name, status in registry])
        for row in listed:
            self.assertEqual(self.server.call("GET", row["type"]).json(), row)

    def test_a_browser_gets_a_page_that_loads_nothing(self):
        for path in ("/problems", "/problems/session_erased"):
            answer = self.server.call("GET", path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
            self.assertEqual(answer.headers["content-type"], "text/html; charset=utf-8")
            self.assertIn("default-src 'none'", answer.headers["content-security-policy"])
            page = Page(answer.body.decode())
            self.assertEqual(page.open, [], "every element is closed")
            self.assertFalse(page.tags & {"script", "img", "link", "iframe", "object"})
            self.assertTrue(all(link.startswith("/problems") for link in page.links), page.links)
            self.assertIn("session_erased", answer.body.decode())

    def test_an_error_that_there_is_not_is_not_found(self):
        for path in ("/problems/nothing", "/problems/ok", "/problems/stale/x"):
            self.assertEqual(self.server.call("GET", path).status, 404, path)
        self.assertEqual(self.server.call("GET", "/problems/STALE").status, 404)
        self.assertEqual(self.server.call("GET", "/problems", headers={"Accept": "image/png"}).status, 406)

    def test_problems_name_a_command_that_helps(self):
        erased = self.server.session(self.engine)
        erasure = self.server.call("POST", "/v1/erasures", self.engine, {"scope": {"session_id": erased}}).json()["id"]
        answer = self.server.call("GET", f"/v1/sessions/{erased}", self.engine)
        self.assertEqual((answer.status, answer.json()["hint"]), (410, f"kvrun erasures get {erasure}"))


def query_tables(source):
    """The parameters of each `kv_q_…` table in the handlers."""
    tables = {}
    for file in Path(source, "server/http").glob("*.c"):
        for name, body in re.findall(r"struct kv_field (kv_q_\w+)\[\] = \{(.*?)\n?\};", file.read_text(), re.S):
            tables[name] = set(re.findall(r'\{\s*"(\w+)"', body)) | set(re.findall(r'KV_\w+\(\s*"(\w+)"', body))
    return tables


def parameters(route, where):
    operation = rig.contract.operation(route.method, example(route.pattern))
    found = [rig.contract.resolve(parameter) for parameter in operation.get("parameters", [])]
    return {parameter["name"] for parameter in found if parameter["in"] == where}


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.open = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


class Origins(rig.Suite):
    server_options = ("--http.cors_origins=https://console.example,https://other.example:8443",)

    def ask(self, method, origin):
        return self.server.call(method, "/v1/tiers", self.server.operator, headers={"Origin": origin}).headers

    def test_an_origin_on_the_list_may_read(self):
        for origin in ("https://console.example", "https://other.example:8443"):
            headers = self.ask("GET", origin)
            self.assertEqual((headers["access-control-allow-origin"], headers["vary"]), (origin, "Origin"))
            self.assertNotIn("access-control-allow-credentials", headers)
            headers = self.ask("OPTIONS", origin)
            self.assertIn("GET", headers["access-control-allow-methods"])
            self.assertIn("Idempotency-Key", headers["access-control-allow-headers"])

    def test_no_other_does(self):
        for origin in ("https://console.example.evil.example", "http://console.example", "null", "*"):
            for method in ("GET", "OPTIONS"):
                headers = self.ask(method, origin)
                self.assertFalse([name for name in headers if name.startswith("access-control")], origin)


class Rates(rig.Suite):
    server_options = ("--rate.default=20", "--rate.erase=10")

    def burst(self, count, send):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(send, range(count)))

    def test_a_key_that_asks_too_often_is_told_when_to_come_back(self):
        tenant = self.server.tenant("busy")
        key, other = self.server.key(tenant, "engine"), self.server.key(tenant, "tenant_admin")
        session = self.server.session(key)
        path = f"/v1/sessions/{session}"

        def too_many():
            answers = self.burst(60, lambda _: self.server.call("GET", path, key))
            return [a for a in answers if a.status == 429]

        refused = rig.wait_for("an answer 429", too_many)[0]
        self.assertEqual((refused.code, refused.json()["retryable"]), ("rate_limited", True))
        self.assertEqual(refused.headers["retry-after"], "1")
        self.assertRegex(refused.headers["ratelimit"], r"^limit=20, remaining=0, reset=\d+$")
        self.assertEqual(self.server.call("GET", path, other).status, 200, "another key has its own")
        erased = self.server.call("POST", "/v1/erasures", key, {"scope": {"session_id": session}})
        self.assertEqual(erased.status, 202, "and so has erasing")
        self.assertRegex(erased.headers["ratelimit"], r"^limit=10, ")
        rig.wait_for("the bucket to fill", lambda: self.server.call("GET", path, key).status == 410)

    def test_probes_and_the_data_plane_are_not_counted(self):
        key = self.server.key(self.server.tenant("bulk"), "engine")
        lookup = {"session_id": "ses_" + "0" * 26, "pool_id": "poo_" + "0" * 26, "hashes": ["0" * 64]}
        for send in (lambda _: self.server.call("GET", "/livez"),
                     lambda _: self.server.call("POST", "/v1/lookups", key, lookup)):
            self.assertNotIn(429, {a.status for a in self.burst(60, send)})


if __name__ == "__main__":
    rig.main(__name__)
