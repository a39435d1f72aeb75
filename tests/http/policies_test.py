"""Policies over the interface: who may write what, what holds from then on, and what questions are answered."""
import json
import pathlib

import rig
from engine import Engine

ALL = {"tiers": {"dram": {}, "nvme": {}}}
DRAM = {"tiers": {"dram": {}}}
TEXTS = ["a", "b", "c"]


class Policies(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.count = 0

    def fresh(self):
        """A tenant of the test's own: id, admin, engine key."""
        type(self).count += 1
        tenant = self.server.tenant(f"policies-{self.count}")
        return tenant, self.server.key(tenant, "tenant_admin"), self.server.key(tenant, "engine")

    def officer(self, tenant):
        """A security officer of the tenant, or of the platform when it is None."""
        path = "/v1/api-keys" if tenant is None else f"/v1/tenants/{tenant}/api-keys"
        answer = self.server.call("POST", path, self.server.operator, {"name": "officer", "roles": ["security_officer"]})
        self.assertEqual(answer.status, 201, answer)
        return answer.json()["secret"]

    def put(self, tenant, token, policy, query="", **headers):
        return self.server.call("PUT", f"/v1/tenants/{tenant}/policy{query}", token, policy,
                                {name.replace("_", "-"): value for name, value in headers.items()})

    def get(self, tenant, token, tail=""):
        return self.server.call("GET", f"/v1/tenants/{tenant}/policy{tail}", token)

    # --- versions

    def test_before_anybody_wrote_one_the_built_in_policy_holds(self):
        tenant, admin, _ = self.fresh()
        answer = self.get(tenant, admin)
        self.assertEqual(answer.status, 200, answer)
        document = answer.json()
        self.assertTrue(document["builtin"])
        self.assertEqual((document["version"], document["policy"]), (0, ALL))
        self.assertTrue(answer.headers["etag"].startswith('"1.'))
        self.assertEqual(self.get(tenant, admin, "/versions").json(), {"data": [], "next_cursor": None})

    def test_versions_count_up_and_never_change(self):
        tenant, admin, _ = self.fresh()
        narrower = [{**ALL, "max_block_bytes": size} for size in (4000000, 3000000, 2000000)]
        for number, policy in enumerate(narrower, 1):
            answer = self.put(tenant, admin, policy)
            self.assertEqual(answer.status, 200, answer)
            self.assertEqual((answer.json()["version"], answer.json()["policy"]), (number, policy))
            self.assertFalse(answer.json()["loosens"])
        for number, policy in enumerate(narrower, 1):
            self.assertEqual(self.get(tenant, admin, f"/versions/{number}").json()["policy"], policy)
        listed = self.get(tenant, admin, "/versions?limit=2").json()
        self.assertEqual([row["version"] for row in listed["data"]], [3, 2])
        rest = self.get(tenant, admin, f"/versions?limit=2&cursor={listed['next_cursor']}").json()
        self.assertEqual([row["version"] for row in rest["data"]], [1])
        for nothing in ("4", "0", "x", "01", "9999999999"):
            self.assertEqual(self.get(tenant, admin, f"/versions/{nothing}").status, 404, nothing)

    def test_the_same_text_again_is_the_same_version(self):
        tenant, admin, _ = self.fresh()
        first = self.put(tenant, admin, DRAM).json()
        self.assertEqual(self.put(tenant, admin, DRAM).json(), first)
        self.assertEqual(len(self.get(tenant, admin, "/versions").json()["data"]), 1)

    def test_if_match_of_an_older_version_changes_nothing(self):
        tenant, admin, _ = self.fresh()
        etag = self.get(tenant, admin).headers["etag"]
        self.assertEqual(self.put(tenant, admin, DRAM, If_Match=etag).status, 200)
        answer = self.put(tenant, admin, {**DRAM, "max_block_bytes": 9}, If_Match=etag)
        self.assertEqual((answer.status, answer.code), (412, "precondition_failed"))
        self.assertEqual(self.get(tenant, admin).json()["version"], 1)

    def test_a_dry_run_writes_nothing(self):
        tenant, admin, _ = self.fresh()
        answer = self.put(tenant, admin, DRAM, "?dry_run=true")
        self.assertEqual(answer.status, 200, answer)
        self.assertEqual(answer.json()["would"]["version"], 1)
        self.assertEqual(self.get(tenant, admin).json()["version"], 0)
        refused = self.put(tenant, admin, {"tiers": {"tape": {}}}, "?dry_run=true")
        self.assertEqual(refused.status, 422)

    # --- of a new tenant

    def create(self, name, policy, query="", token=None):
        body = {"name": name, "policy": policy}
        return self.server.call("POST", f"/v1/tenants{query}", token or self.server.operator, body)

    def test_a_tenant_may_begin_with_a_policy(self):
        made = self.create("born-narrow", DRAM)
        self.assertEqual(made.status, 201, made)
        tenant = made.json()["id"]
        admin = self.server.key(tenant, "tenant_admin")
        document = self.get(tenant, admin).json()
        self.assertEqual((document["version"], document["policy"], document["builtin"]), (1, DRAM, False))
        self.assertEqual(document["created_role"], "operator")
        asked = self.ask(tenant, {"action": "offload", "block_bytes": 4096})
        self.assertEqual((asked["decision"], asked["tiers"]), ("allow", ["dram"]))
        auditor = self.server.key(tenant, "auditor")
        rig.wait_for("both entries", lambda: {"tenant.create", "policy.activate"} <= {
            entry["op"] for entry in self.server.call("GET", "/v1/audit/entries", auditor).json()["data"]})
        self.assertEqual(self.put(tenant, admin, ALL).code, "forbidden", "it was narrowed")

    def test_a_tenant_with_a_policy_that_is_refused_is_not_made(self):
        for policy, status, code, pointer in (({"tiers": {"tape": {}}}, 422, "policy_invalid", "/policy/tiers/tape"),
                                              ({}, 422, "policy_invalid", "/policy/tiers"),
                                              ({**ALL, "classes": {"a": {"x": 1}}}, 422, "policy_invalid",
                                               "/policy/classes/a/x")):
            for query in ("", "?dry_run=true"):
                refused = self.create("never-born", policy, query)
                self.assertEqual((refused.status, refused.code, refused.pointer), (status, code, pointer), refused)
        not_even = self.create("never-born", "tiers")
        self.assertEqual((not_even.status, not_even.code), (400, "invalid_request"))
        made = self.create("never-born", ALL)
        self.assertEqual(made.status, 201, "the name is free")

    def test_a_dry_run_of_a_tenant_with_a_policy_writes_neither(self):
        answer = self.create("dry-born", DRAM, "?dry_run=true")
        self.assertEqual((answer.status, answer.json()["would"]["name"]), (200, "dry-born"), answer)
        self.assertEqual(self.create("dry-born", DRAM).status, 201)

    # --- who may write what

    def test_an_admin_narrows_and_may_not_loosen(self):
        tenant, admin, _ = self.fresh()
        self.assertEqual(self.put(tenant, admin, DRAM).status, 200)
        answer = self.put(tenant, admin, ALL)
        self.assertEqual((answer.status, answer.code), (403, "forbidden"), answer)
        self.assertIn("nvme", answer.json()["detail"])
        self.assertEqual(self.get(tenant, admin).json()["policy"], DRAM)

    def test_a_security_officer_loosens(self):
        tenant, admin, _ = self.fresh()
        self.put(tenant, admin, DRAM)
        answer = self.put(tenant, self.officer(tenant), ALL)
        self.assertEqual(answer.status, 200, answer)
        self.assertTrue(answer.json()["loosens"])

    def test_the_platform_narrows_for_everybody_and_is_a_ceiling(self):
        tenant, admin, _ = self.fresh()
        token = self.server.operator
        before = self.server.call("GET", "/v1/platform/policy", token).json()["policy"]
        lower = {**before, "max_block_bytes": 60000000}
        answer = self.server.call("PUT", "/v1/platform/policy", token, lower)
        self.assertEqual(answer.status, 200, answer)
        self.assertNotIn("tenant_id", answer.json())
        refused = self.put(tenant, admin, {**ALL, "max_block_bytes": 60000001})
        self.assertEqual((refused.status, refused.code, refused.pointer), (403, "ceiling", "/max_block_bytes"), refused)
        self.assertEqual(self.put(tenant, admin, {**ALL, "max_block_bytes": 60000000}).status, 200)
        refused = self.create("born-too-high", {**ALL, "max_block_bytes": 60000001})
        self.assertEqual((refused.status, refused.code, refused.pointer), (403, "ceiling", "/policy/max_block_bytes"))
        self.assertEqual(self.create("born-too-high", {**ALL, "max_block_bytes": 60000000}).status, 201)
        asked = self.ask(tenant, {"action": "offload", "block_bytes": 60000001})
        self.assertEqual((asked["decision"], asked["reasons"]), ("deny", ["block_too_large"]))
        raised = self.server.call("PUT", "/v1/platform/policy", token, before)
        self.assertEqual((raised.status, raised.code), (403, "forbidden"), raised)
        self.assertEqual(self.put(tenant, self.officer(tenant), {**ALL, "max_block_bytes": 60000001}).code, "ceiling")
        self.assertEqual(self.server.call("PUT", "/v1/platform/policy", self.officer(None), before).status, 200)
        versions = self.server.call("GET", "/v1/platform/policy/versions", token).json()["data"]
        one = self.server.call("GET", f"/v1/platform/policy/versions/{versions[0]['version']}", token).json()
        self.assertEqual(one["policy"], before)
        self.assertEqual([row["loosens"] for row in versions], [True, False])

    def test_a_tenant_sees_its_own_policy_and_no_other(self):
        ours, admin, _ = self.fresh()
        theirs, _, _ = self.fresh()
        self.assertEqual(self.get(theirs, admin).status, 404)
        self.assertEqual(self.put(theirs, admin, DRAM).status, 404)
        self.assertEqual(self.server.call("GET", "/v1/platform/policy", admin).status, 403)
        self.assertEqual(self.get(ours, admin).status, 200)

    # --- texts

    def test_a_fault_is_pointed_at_and_changes_nothing(self):
        tenant, admin, _ = self.fresh()
        source = pathlib.Path(rig.options.source, "policies/vectors/invalid.json")
        for case in json.loads(source.read_text())["invalid"]:
            if case["level"] != "tenant":
                continue
            text = case["policy"] if isinstance(case["policy"], str) else json.dumps(case["policy"])
            answer = self.server.call("PUT", f"/v1/tenants/{tenant}/policy", admin, text.encode())
            self.assertEqual((answer.status, answer.code), (422, "policy_invalid"), case["name"])
            self.assertIn(case["says"], answer.json()["detail"], case["name"])
        self.assertEqual(self.get(tenant, admin).json()["version"], 0)

    def test_the_example_is_a_policy(self):
        tenant, admin, _ = self.fresh()
        text = pathlib.Path(rig.options.source, "policies/example.json").read_bytes()
        diff = self.server.call("POST", "/v1/policies:diff", admin, {"to": json.loads(text)}).json()
        self.assertTrue(diff["complete"])
        self.assertGreater(diff["newly_denied"], 0)
        self.assertFalse(diff["loosens"], "its new classes allow no more than default did")
        self.assertEqual(self.server.call("PUT", f"/v1/tenants/{tenant}/policy", admin, text).status, 200)

    # --- questions

    def ask(self, tenant, question, token=None, **members):
        body = {"ask": question, **members}
        if token is None:
            body["tenant_id"] = tenant
        answer = self.server.call("POST", "/v1/policies:evaluate", token or self.server.operator, body)
        self.assertEqual(answer.status, 200, answer)
        return answer.json()

    def test_a_question_is_answered_by_the_active_policy_and_by_another(self):
        tenant, admin, engine = self.fresh()
        self.put(tenant, admin, DRAM)
        answer = self.ask(tenant, {"action": "offload"}, admin)
        self.assertEqual((answer["decision"], answer["tiers"], answer["version"]), ("allow", ["dram"], 1))
        answer = self.ask(tenant, {"action": "offload", "durable": True}, admin, policy=ALL)
        self.assertEqual((answer["decision"], answer["reasons"]), ("deny", ["tier_forbidden"]))
        self.assertEqual((answer["with"]["decision"], answer["would_change"]), ("allow", True))
        session = self.server.session(engine, {"id": "small", "revision": "r"})
        answer = self.ask(tenant, {"action": "restore"}, admin, session_id=session, policy={**DRAM, "models": ["large"]})
        self.assertEqual(answer["decision"], "allow")
        self.assertEqual(answer["with"]["reasons"], ["model_forbidden"])

    def test_bad_questions_are_refused(self):
        tenant, admin, _ = self.fresh()
        url = "/v1/policies:evaluate"
        for body, status, pointer in (
                ({"ask": {}}, 422, "/ask/action"), ({"ask": {"action": "fly"}}, 422, "/ask/action"),
                ({"ask": {"action": "lookup", "colour": 1}}, 422, "/ask/colour"), ({}, 400, "/ask"),
                ({"ask": {"action": "lookup"}, "policy": {"tiers": {"tape": {}}}}, 422, "/policy/tiers/tape")):
            answer = self.server.call("POST", url, admin, body)
            self.assertEqual((answer.status, answer.pointer), (status, pointer), answer)
        self.assertEqual(self.get("ten_" + "0" * 26, self.server.operator).status, 404, "it is not the platform")
        nobody = {"ask": {"action": "lookup"}, "session_id": "ses_" + "0" * 26}
        self.assertEqual(self.server.call("POST", url, admin, nobody).status, 404)
        self.assertEqual(self.server.call("POST", url, self.server.operator, {"ask": {"action": "lookup"}}).status, 400)

    def test_the_difference_says_what_is_newly_allowed_and_denied(self):
        tenant, admin, _ = self.fresh()
        answer = self.server.call("POST", "/v1/policies:diff", admin, {"from": DRAM, "to": ALL}).json()
        self.assertTrue(answer["loosens"])
        self.assertTrue(any(c["effect"] == "allows" and "nvme" in c["what"] for c in answer["changes"]), answer)
        back = self.server.call("POST", "/v1/policies:diff", admin, {"from": ALL, "to": DRAM}).json()
        self.assertFalse(back["loosens"])
        same = self.server.call("POST", "/v1/policies:diff", admin, {"to": ALL}).json()
        self.assertEqual((same["loosens"], same["newly_denied"], same["changes"]), (False, 0, []))

    # --- what holds

    def test_transfers_follow_the_policy_from_the_answer_on(self):
        tenant, admin, token = self.fresh()
        engine = Engine(self.server, token).open_pool()
        session = self.server.session(token)
        self.assertEqual(engine.offload(session, TEXTS, range(3), wait="durable").status, 200)
        self.assertEqual(self.put(tenant, admin, DRAM).status, 200)
        refused = engine.offload(session, ["d"], [3], wait="durable")
        self.assertEqual((refused.status, refused.code), (403, "policy_denied"), refused)
        self.assertIn("tier_forbidden", refused.json()["detail"])
        self.assertEqual(engine.offload(session, ["d"], [3]).status, 200)
        self.assertEqual(self.put(tenant, admin, {**DRAM, "restore": "never"}).status, 200)
        refused = engine.restore(session, TEXTS, range(3))
        self.assertEqual((refused.status, refused.code), (403, "policy_denied"))
        self.assertIn("restore_never", refused.json()["detail"])
        self.assertEqual(self.put(tenant, admin, {**DRAM, "restore": "never", "models": ["other"]}).status, 200)
        answer = self.server.call("POST", "/v1/sessions", token, {"model": {"id": "m", "revision": "r"}})
        self.assertEqual((answer.status, answer.code), (403, "policy_denied"))
        self.assertIn("model_forbidden", answer.json()["detail"])
        erased = self.server.call("POST", "/v1/erasures", admin, {"scope": {"session_id": session}},
                                  {"Prefer": "wait=30"})
        self.assertIn(erased.status, (200, 202), "no policy keeps from erasing")

    def test_quotas_of_bytes_and_blocks_hold(self):
        tenant, admin, token = self.fresh()
        engine = Engine(self.server, token).open_pool()
        session = self.server.session(token)
        sealed = engine.offload(session, ["a"], [0]).json() and 2 * engine.run + 4096
        self.put(tenant, admin, {"tiers": {"dram": {}}, "quota": {"dram_bytes": 3 * sealed}})
        answer = engine.offload(session, ["b", "c", "d", "e"], range(4)).json()
        self.assertEqual(answer["results"], ["stored", "stored", "denied", "denied"])
        full = engine.offload(session, ["f"], [5])
        self.assertEqual((full.status, full.code), (429, "quota"), full)
        self.assertEqual(engine.offload(session, ["a"], [0]).json()["results"], ["present"])
        erased = self.server.call("POST", "/v1/erasures", admin, {"scope": {"session_id": session}},
                                  {"Prefer": "wait=30"})
        self.assertEqual(erased.status, 200, erased)
        other = self.server.session(token)
        answer = engine.offload(other, ["b", "c", "d", "e"], range(4)).json()
        self.assertEqual(answer["results"], ["stored"] * 3 + ["denied"], "what is erased is given back")

    def test_a_quota_of_sessions_holds(self):
        tenant, admin, token = self.fresh()
        first = self.server.session(token)
        self.assertEqual(self.put(tenant, admin, {**ALL, "quota": {"sessions": 2}}).status, 200)
        self.server.session(token)
        body = {"model": {"id": "m", "revision": "r"}}
        full = self.server.call("POST", "/v1/sessions", token, body)
        self.assertEqual((full.status, full.code), (429, "quota_sessions"), full)
        self.server.call("POST", "/v1/erasures", admin, {"scope": {"session_id": first}}, {"Prefer": "wait=30"})
        self.assertEqual(self.server.call("POST", "/v1/sessions", token, body).status, 201)

    def test_a_class_gives_a_session_its_lifetimes_and_must_exist(self):
        tenant, admin, token = self.fresh()
        policy = {**ALL, "session": {"max_age_seconds": 5000}, "classes": {"short": {"session": {"max_age_seconds": 100}}}}
        self.assertEqual(self.put(tenant, admin, policy).status, 200)
        body = {"model": {"id": "m", "revision": "r"}}

        def make(**members):
            return self.server.call("POST", "/v1/sessions", token, {**body, **members})

        answer = make(**{"class": "short"})
        self.assertEqual(answer.status, 201, answer)
        self.assertIn("expires_at", answer.json())
        long = make(**{"class": "short", "ttl_seconds": 101})
        self.assertEqual((long.status, long.code, long.pointer), (403, "ceiling", "/ttl_seconds"), long)
        self.assertEqual(make(**{"class": "short", "ttl_seconds": 100}).status, 201)
        unknown = make(**{"class": "gold"})
        self.assertEqual((unknown.status, unknown.code), (403, "policy_denied"))
        self.assertIn("class_unknown", unknown.json()["detail"])

    def test_an_erasure_gives_the_basis_and_reason_that_the_policy_asks_for(self):
        tenant, admin, token = self.fresh()
        self.assertEqual(self.put(tenant, admin, {**ALL, "erase": {"basis": ["retention"], "require_reason": True}}).status,
                         200)
        session = self.server.session(token)

        def erase(**members):
            body = {"scope": {"session_id": session}, **members}
            return self.server.call("POST", "/v1/erasures", admin, body, {"Prefer": "wait=30"})

        for members, reason in (({"basis": "retention"}, "reason_required"),
                                ({"basis": "contract", "reason": "r"}, "basis_forbidden")):
            refused = erase(**members)
            self.assertEqual((refused.status, refused.code), (403, "policy_denied"), refused)
            self.assertIn(reason, refused.json()["detail"])
        self.assertEqual(erase(basis="retention", reason="asked for by its owner").status, 200)

    def test_past_transfers_are_replayed(self):
        tenant, admin, token = self.fresh()
        engine = Engine(self.server, token).open_pool()
        session = self.server.session(token)
        self.assertEqual(engine.offload(session, TEXTS, range(3)).status, 200)
        self.assertEqual(engine.restore(session, TEXTS, range(3)).status, 200)

        def replayed():
            body = {"policy": {**ALL, "restore": "never"}}
            answer = self.server.call("POST", "/v1/policies:dry-run", admin, body)
            self.assertEqual(answer.status, 200, answer)
            return answer.json() if answer.json()["replayed"] >= 2 else None

        answer = rig.wait_for("the records to be in the database", replayed)
        self.assertEqual((answer["newly_denied"], answer["newly_allowed"]), (1, 0), answer)
        self.assertEqual(answer["denied_by"], {"restore_never": 1})

    def test_decisions_are_counted_and_a_change_is_on_record(self):
        tenant, admin, token = self.fresh()
        self.put(tenant, admin, {**ALL, "models": ["other"]})
        self.server.call("POST", "/v1/sessions", token, {"model": {"id": "m", "revision": "r"}})
        metrics = self.server.call("GET", "/metrics", admin=True).body.decode()
        self.assertRegex(metrics, r'kvrun_policy_decisions_total\{action="session",decision="deny",'
                                  r'reason="model_forbidden"\} [1-9]')
        rows = self.server.database("select count(*) from audit_leaf where encode(entry, 'escape') like"
                                    " '%policy.activate%'")
        if rows is not None:
            rig.wait_for("the entry in the log", lambda: int(self.server.database(
                "select count(*) from audit_leaf where encode(entry, 'escape') like '%policy.activate%'")) > 0)


if __name__ == "__main__":
    rig.main(__name__)
