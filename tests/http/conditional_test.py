"""Conditional requests, merge patches and dry runs: a change is made from what its caller saw, or not at all."""
import concurrent.futures
import re
import uuid

import rig

TABLES = ("tenant", "api_key", "session", "erasure", "erasure_group", "idempotency", "policy_version", "platform",
          "operation", "change_head", "ktree_node")
PATCH = {"Content-Type": "application/merge-patch+json"}


class Conditional(rig.Suite):
    def setUp(self):
        made = self.server.call("POST", "/v1/tenants", self.server.operator,
                                {"name": "c" + uuid.uuid4().hex[:20], "display_name": "one"})
        self.assertEqual(made.status, 201)
        self.id, self.path = made.json()["id"], f"/v1/tenants/{made.json()['id']}"
        self.made = made

    def get(self, **headers):
        names = {"if_match": "If-Match", "if_none_match": "If-None-Match"}
        return self.server.call("GET", self.path, self.server.operator,
                                headers={names[name]: value for name, value in headers.items()})

    def patch(self, body, tag=None, query=""):
        headers = {**PATCH, **({"If-Match": tag} if tag is not None else {})}
        return self.server.call("PATCH", self.path + query, self.server.operator, body, headers)

    # --- ETag

    def test_a_resource_has_a_strong_etag_that_changes_with_it(self):
        first, second = self.get(), self.get()
        self.assertRegex(first.headers["etag"], r'^"[1-9][0-9]*\.[0-9a-f]{16}"$')
        self.assertEqual(first.headers["etag"], second.headers["etag"])
        self.assertEqual(first.headers["etag"], self.made.headers["etag"], "what made it says the same")
        changed = self.patch({"display_name": "two"})
        self.assertNotEqual(changed.headers["etag"], first.headers["etag"])
        self.assertEqual(changed.headers["etag"], self.get().headers["etag"])

    def test_what_did_not_change_is_not_sent_again(self):
        tag = self.get().headers["etag"]
        for value in (tag, f'"x", {tag}', "W/" + tag, "*"):
            answer = self.get(if_none_match=value)
            self.assertEqual((answer.status, answer.body), (304, b""), value)
            self.assertEqual(answer.headers["etag"], tag)
            self.assertNotIn("content-type", answer.headers)
        for value in ('"x"', tag.replace(".", "x"), tag.strip('"'), tag.split(".")[0] + '"'):
            self.assertEqual(self.get(if_none_match=value).status, 200, value)
        head = self.server.call("HEAD", self.path, self.server.operator, headers={"If-None-Match": tag})
        self.assertEqual((head.status, head.headers["etag"]), (304, tag))
        self.patch({"display_name": "two"})
        self.assertEqual(self.get(if_none_match=tag).status, 200)

    # --- If-Match

    def test_a_change_from_what_was_seen_is_made(self):
        tag = self.get().headers["etag"]
        first = self.patch({"display_name": "two"}, tag)
        self.assertEqual((first.status, first.json()["display_name"]), (200, "two"))
        second = self.patch({"display_name": "three"}, first.headers["etag"])
        self.assertEqual(second.status, 200)
        self.assertEqual(self.patch({"display_name": "four"}, "*").status, 200)
        self.assertEqual(self.patch({"display_name": "five"}).status, 200, "without a condition it is made, too")

    def test_a_change_from_an_older_state_is_not_made(self):
        tag = self.get().headers["etag"]
        self.patch({"display_name": "two"})
        rev = re.match('"([0-9]+)', tag)[1]
        for old in (tag, f'"{rev}"', f'"{rev}.0000000000000000"', 'W/"1"', '"x"', '"999"'):
            answer = self.patch({"display_name": "three"}, old)
            self.assertEqual((answer.status, answer.code), (412, "precondition_failed"), old)
        self.assertEqual(self.get().json()["display_name"], "two")

    def test_a_condition_that_cannot_be_read_makes_no_change(self):
        tag = self.get().headers["etag"]
        for bad in ("", "1", tag.strip('"'), f"{tag}, {tag}", tag[:-1], "*, *"):
            answer = self.patch({"display_name": "two"}, bad)
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), bad)
        self.assertEqual(self.get().headers["etag"], tag)

    def test_of_many_changes_from_one_state_one_is_made(self):
        tag = self.get().headers["etag"]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda i: self.patch({"display_name": f"n{i}"}, tag), range(16)))
        self.assertEqual(sorted(a.status for a in answers), [200] + [412] * 15)
        winner = next(a for a in answers if a.status == 200)
        self.assertEqual(self.get().json(), winner.json())

    # --- merge patches

    def test_a_patch_changes_what_it_names_and_null_takes_away(self):
        self.patch({"labels": {"a": "1", "b": "2"}})
        answer = self.patch({"display_name": None, "labels": {"a": None, "c": "3"}})
        self.assertEqual(answer.status, 200)
        self.assertNotIn("display_name", answer.json())
        self.assertEqual(answer.json()["labels"], {"b": "2", "c": "3"})
        self.assertEqual(answer.json()["name"], self.made.json()["name"])

    def test_what_never_changes_and_what_is_nothing_is_refused(self):
        tag = self.get().headers["etag"]
        for body, status, code in (({"name": "other"}, 422, "immutable_field"), ({}, 400, "invalid_request"),
                                   ({"zzz": 1}, 400, "invalid_request"), ({"id": self.id}, 400, "invalid_request"),
                                   ({"labels": None}, 400, "invalid_request")):
            answer = self.patch(body)
            self.assertEqual((answer.status, answer.code), (status, code), body)
        for kind in ("application/json", "application/json-patch+json", "text/plain", ""):
            answer = self.server.call("PATCH", self.path, self.server.operator, {"display_name": "x"},
                                      {"Content-Type": kind})
            self.assertEqual((answer.status, answer.headers["accept-patch"]), (415, PATCH["Content-Type"]), kind)
        self.assertEqual(self.get().headers["etag"], tag)

    # --- dry runs

    def contents(self):
        """A digest of every table that a request may write."""
        have = self.server.database("SELECT table_name FROM information_schema.tables").split()
        row = "(to_jsonb(t) - 'last_used_at')::text"  # which is written now and then, whatever a request does
        parts = [f"SELECT '{table}', count(*), md5(string_agg({row}, '|' ORDER BY {row})) FROM {table} t"
                 for table in sorted(set(TABLES) & set(have))]
        self.assertGreater(len(parts), 7)
        parts.append("SELECT 'entries', (SELECT count(*) FROM audit_outbox) + (SELECT count(*) FROM audit_leaf), ''")
        return self.server.database(" UNION ALL ".join(parts)).splitlines()

    def test_a_dry_run_says_what_would_be_and_writes_nothing(self):
        key = self.server.key(self.id, "tenant_admin")
        session = self.server.session(key)
        rows = [
            ("POST", "/v1/tenants", self.server.operator, {"name": "d" + uuid.uuid4().hex[:20]}),
            ("PATCH", self.path, self.server.operator, {"display_name": "dry"}),
            ("POST", f"{self.path}:suspend", self.server.operator, {}),
            ("DELETE", self.path, self.server.operator, None),
            ("POST", f"{self.path}/api-keys", self.server.operator, {"name": "k", "roles": ["engine"]}),
            ("POST", "/v1/sessions", key, {"model": {"id": "m", "revision": "r"}}),
            ("PATCH", f"/v1/sessions/{session}", key, {"labels": {"a": "1"}}),
            ("POST", "/v1/erasures", key, {"scope": {"session_id": session}}),
        ]
        before = self.contents()
        for method, path, token, body in rows:
            answer = self.server.call(method, path + "?dry_run=true", token, body, PATCH if method == "PATCH" else {})
            self.assertEqual((answer.status, answer.json()["dry_run"]), (200, True), f"{method} {path} {answer}")
            self.assertIsInstance(answer.json()["would"], dict)
            self.assertNotIn("location", answer.headers)
            self.assertNotIn("etag", answer.headers)
            self.assertEqual(self.contents(), before, f"{method} {path}")
        self.assertEqual(self.server.call("GET", self.path, self.server.operator).json()["state"], "active")
        for method, path, token, body in rows[1:2] + rows[4:]:  # the control: for real they write
            self.assertLess(self.server.call(method, path, token, body, PATCH if method == "PATCH" else {}).status, 300)
            self.assertNotEqual(self.contents(), before, f"{method} {path}")
            before = self.contents()

    def test_a_dry_run_refuses_what_would_be_refused(self):
        before = self.contents()
        for body, status in (({"name": self.made.json()["name"]}, 409), ({"name": "A"}, 400), ({}, 400)):
            answer = self.server.call("POST", "/v1/tenants?dry_run=true", self.server.operator, body)
            self.assertEqual(answer.status, status, body)
        self.assertEqual(self.patch({"display_name": "x"}, '"99"', "?dry_run=true").status, 412)
        self.assertEqual(self.patch({"name": "x"}, None, "?dry_run=true").status, 422)
        self.assertEqual(self.contents(), before)


class Required(rig.Suite):
    server_options = ("--http.require_if_match=all",)

    def test_a_change_without_a_condition_is_refused(self):
        made = self.server.call("POST", "/v1/tenants", self.server.operator, {"name": "required"})
        path = f"/v1/tenants/{made.json()['id']}"
        answer = self.server.call("PATCH", path, self.server.operator, {"display_name": "x"}, PATCH)
        self.assertEqual((answer.status, answer.code), (428, "precondition_required"))
        for tag in (made.headers["etag"], "*"):
            answer = self.server.call("PATCH", path, self.server.operator, {"display_name": tag}, {**PATCH, "If-Match": tag})
            self.assertEqual(answer.status, 200, answer)


if __name__ == "__main__":
    rig.main(__name__)
