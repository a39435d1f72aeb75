"""Tenants: made, listed, named, suspended, deleted with a grace time and restored; what another tenant sees of it."""
import rig

PATCH = {"Content-Type": "application/merge-patch+json"}


class Tenants(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ours, cls.theirs = cls.server.tenant("ours"), cls.server.tenant("theirs")
        cls.admin, cls.viewer = cls.server.key(cls.ours, "tenant_admin"), cls.server.key(cls.ours, "viewer")
        cls.stranger = cls.server.key(cls.theirs, "tenant_admin")

    def operator(self, method, path, body=None, headers=None):
        return self.server.call(method, path, self.server.operator, body, headers)

    def make(self, name, **members):
        answer = self.operator("POST", "/v1/tenants", {"name": name, **members})
        self.assertEqual(answer.status, 201, answer)
        return answer

    def test_what_is_made_is_read_back(self):
        made = self.make("whole", display_name="Gänze & Söhne", region="eu-1", labels={"env": "prod", "team": "a\"b\\"})
        got = self.operator("GET", made.headers["location"])
        self.assertEqual(made.json(), got.json())
        self.assertEqual(made.headers["etag"], got.headers["etag"])
        self.assertEqual(got.json()["labels"], {"env": "prod", "team": "a\"b\\"})
        again = self.operator("GET", made.headers["location"], headers={"If-None-Match": got.headers["etag"]})
        self.assertEqual((again.status, again.body), (304, b""))

    def test_labels_have_their_names_values_and_number(self):
        good = {f"n{i}": "v" * 128 for i in range(16)}
        self.make("labels-16", labels=good)
        for bad in ({**good, "one-more": "v"}, {"n": "v" * 129}, {"N": "v"}, {"": "v"}, {"n" * 64: "v"}, {"n": 1}, {"n": None}, []):
            answer = self.operator("POST", "/v1/tenants", {"name": "labels-bad", "labels": bad})
            self.assertEqual((answer.status, answer.pointer), (400, "/labels"), bad)
        self.make("labels-longest", labels={"n" * 63: ""})

    def test_a_list_goes_in_pages_both_ways(self):
        made = [self.make(f"page-{i}", labels={"list": "pages"}).json()["id"] for i in range(5)]
        for order in ("asc", "desc"):
            seen, path = [], f"/v1/tenants?label=list:pages&limit=2&order={order}"
            while path:
                answer = self.operator("GET", path)
                self.assertEqual(answer.status, 200, answer)
                seen += [tenant["id"] for tenant in answer.json()["data"]]
                cursor = answer.json()["next_cursor"]
                path = cursor and f"/v1/tenants?label=list:pages&limit=2&order={order}&cursor={cursor}"
            self.assertEqual(seen, made if order == "asc" else made[::-1])
        other = self.operator("GET", f"/v1/tenants?limit=1&order=asc&cursor={self.operator('GET', '/v1/tenants?limit=1').json()['next_cursor']}")
        self.assertEqual(other.status, 400, "a cursor of another order")

    def test_a_list_is_narrowed(self):
        self.assertEqual(self.operator("GET", "/v1/tenants?label=list:nothing").json()["data"], [])
        states = {t["state"] for t in self.operator("GET", "/v1/tenants?state=active&limit=200").json()["data"]}
        self.assertEqual(states, {"active"})
        for query in ("state=happy", "label=x", "label=X:y", "limit=0", "limit=201", "nothing=1"):
            self.assertEqual(self.operator("GET", f"/v1/tenants?{query}").status, 400, query)

    def test_a_patch_takes_labels_away_and_leaves_the_others(self):
        path = self.make("patched", display_name="before", labels={"a": "1", "b": "2"}).headers["location"]
        answer = self.operator("PATCH", path, {"display_name": None, "labels": {"a": None, "c": "3"}}, PATCH)
        self.assertEqual(answer.json()["labels"], {"b": "2", "c": "3"})
        self.assertNotIn("display_name", answer.json())
        self.assertEqual(self.operator("PATCH", path, {"name": "other"}, PATCH).code, "immutable_field")
        self.assertEqual(self.operator("PATCH", path, {}, PATCH).status, 400)

    def test_a_change_is_made_from_the_revision_that_was_seen(self):
        made = self.make("revisions")
        path, seen = made.headers["location"], {**PATCH, "If-Match": made.headers["etag"]}
        first = self.operator("PATCH", path, {"display_name": "first"}, seen)
        self.assertEqual(first.status, 200)
        second = self.operator("PATCH", path, {"display_name": "second"}, seen)
        self.assertEqual((second.status, second.code), (412, "precondition_failed"))
        self.assertEqual(self.operator("GET", path).json()["display_name"], "first")
        any_revision = self.operator("PATCH", path, {"display_name": "third"}, {**PATCH, "If-Match": "*"})
        self.assertEqual(any_revision.status, 200)

    def test_a_dry_run_writes_nothing(self):
        answer = self.operator("POST", "/v1/tenants?dry_run=true", {"name": "never"})
        self.assertEqual((answer.status, answer.json()["would"]["name"]), (200, "never"))
        self.assertEqual(self.operator("POST", "/v1/tenants?dry_run=true", {"name": "ours"}).code, "tenant_exists")
        path = self.make("dry").headers["location"]
        before = self.operator("GET", path).json()
        for how, tail in (("PATCH", ""), ("POST", ":suspend"), ("DELETE", "")):
            body = {"display_name": "x"} if how == "PATCH" else {} if how == "POST" else None
            answer = self.operator(how, f"{path}{tail}?dry_run=true", body, PATCH if how == "PATCH" else None)
            self.assertEqual((answer.status, answer.json()["dry_run"]), (200, True), how)
        self.assertEqual(self.operator("GET", path).json(), before)
        self.make("never")

    def test_a_repeated_request_is_answered_once_more(self):
        key = {"Idempotency-Key": "tenants-1"}
        first = self.operator("POST", "/v1/tenants", {"name": "once"}, key)
        again = self.operator("POST", "/v1/tenants", {"name": "once"}, key)
        self.assertEqual((first.status, again.status, first.body), (201, 201, again.body))
        self.assertEqual(again.headers["idempotency-replayed"], "true")
        self.assertEqual(self.operator("POST", "/v1/tenants", {"name": "twice"}, key).code, "idempotency_mismatch")

    def test_a_suspended_tenant_gets_no_new_sessions_and_keeps_its_data(self):
        made = self.make("late-payer")
        path, admin = made.headers["location"], self.server.key(made.json()["id"], "tenant_admin")
        session = self.server.session(admin)
        answer = self.operator("POST", f"{path}:suspend", {"reason": "unpaid since the flood"})
        self.assertEqual((answer.status, answer.json()["state"]), (200, "suspended"))
        self.assertIn("suspended_at", answer.json())
        refused = self.server.call("POST", "/v1/sessions", admin, {"model": {"id": "m", "revision": "r"}})
        self.assertEqual((refused.status, refused.code), (403, "tenant_suspended"))
        self.assertEqual(self.server.call("GET", f"/v1/sessions/{session}", admin).status, 200)
        self.assertEqual(self.operator("POST", f"{path}:suspend", {}).code, "invalid_state")
        texts = self.server.database("select string_agg(t::text, ' ') from kvrun.tenant t")
        self.assertTrue(texts is None or "flood" not in texts)
        self.assertEqual(self.operator("POST", f"{path}:resume").json()["state"], "active")
        self.assertEqual(self.operator("POST", f"{path}:resume").code, "invalid_state")
        self.server.session(admin)

    def test_a_deletion_can_be_called_back_in_its_grace_time(self):
        made = self.make("leaver")
        path, admin = made.headers["location"], self.server.key(made.json()["id"], "tenant_admin")
        answer = self.operator("DELETE", path)
        self.assertEqual((answer.status, answer.json()["state"]), (202, "deleting"))
        again = self.operator("DELETE", path)
        self.assertEqual((again.status, again.json()), (202, answer.json()), "it changes nothing")
        refused = self.server.call("POST", "/v1/sessions", admin, {"model": {"id": "m", "revision": "r"}})
        self.assertEqual(refused.code, "tenant_suspended")
        self.assertEqual(self.operator("POST", f"{path}:restore").json()["state"], "active")
        self.assertEqual(self.operator("POST", f"{path}:restore").code, "invalid_state")
        self.server.session(admin)
        self.operator("POST", f"{path}:suspend")
        self.operator("DELETE", path)
        self.assertEqual(self.operator("POST", f"{path}:restore").json()["state"], "suspended", "as it was before")

    def test_a_tenant_deleted_at_once_is_erased_with_its_sessions(self):
        made = self.make("goner")
        path, admin = made.headers["location"], self.server.key(made.json()["id"], "tenant_admin")
        sessions = [self.server.session(admin) for _ in range(3)]
        self.assertEqual(self.operator("DELETE", f"{path}?now=true").status, 202)
        restored = self.operator("POST", f"{path}:restore")
        self.assertIn(restored.code, ("irreversible", "invalid_state"))
        rig.wait_for("the end of the tenant", lambda: self.operator("GET", path).json()["state"] == "erased")
        for session in sessions:
            self.assertEqual(self.server.call("GET", f"/v1/sessions/{session}", admin).status, 410)
        self.assertEqual(self.operator("PATCH", path, {"display_name": "x"}, PATCH).code, "invalid_state")

    def test_no_session_is_made_in_a_tenant_that_another_instance_began_to_erase(self):
        made = self.make("half-gone")
        admin = self.server.key(made.json()["id"], "tenant_admin")
        for _ in range(20):
            self.server.session(admin)  # its rules are known by the last of them, and say that it is active
        changed = self.server.database("UPDATE kvrun.tenant SET state = 'erasing' WHERE name = 'half-gone' RETURNING 1")
        if changed is None:
            self.skipTest("psql is not there")
        refused = self.server.call("POST", "/v1/sessions", admin, {"model": {"id": "m", "revision": "r"}})
        self.assertEqual((refused.status, refused.code), (403, "tenant_suspended"))

    def test_usage_counts_sessions(self):
        before = self.server.call("GET", f"/v1/tenants/{self.ours}/usage", self.admin).json()
        self.server.session(self.admin)
        after = self.server.call("GET", f"/v1/tenants/{self.ours}/usage", self.viewer).json()
        self.assertEqual(after["sessions"]["active"], before["sessions"]["active"] + 1)
        self.assertEqual({tier["tier"] for tier in after["tiers"]}, {"dram", "nvme"})

    def test_an_admin_names_its_own_tenant_and_moves_it_nowhere(self):
        path = f"/v1/tenants/{self.ours}"
        self.assertEqual(self.server.call("PATCH", path, self.admin, {"labels": {"own": "1"}}, PATCH).status, 200)
        refused = self.server.call("PATCH", path, self.admin, {"region": "us-1"}, PATCH)
        self.assertEqual((refused.status, refused.code), (403, "forbidden"))

    def test_another_tenants_answers_like_one_that_is_not_there(self):
        nothing = "ten_" + "0" * 26
        for method, tail, body in (("GET", "", None), ("GET", "/usage", None), ("PATCH", "", {"display_name": "x"}),
                                   ("GET", "/api-keys", None)):
            headers = PATCH if method == "PATCH" else None
            answers = [self.server.call(method, f"/v1/tenants/{tenant}{tail}", self.stranger, body, headers)
                       for tenant in (self.ours, nothing)]
            documents = [answer.json() for answer in answers]
            for document in documents:
                del document["request_id"], document["instance"]
            self.assertEqual(answers[0].status, 404, tail)
            self.assertEqual(documents[0], documents[1], tail)


if __name__ == "__main__":
    rig.main(__name__)
