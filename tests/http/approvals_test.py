"""Approvals: what takes two people is proposed by one and done when another approves it; once, in time, on what was seen."""
import hashlib
import json
import signal

import rig
from holds_test import ahead

PATCH = {"Content-Type": "application/merge-patch+json"}
POLICY = {"tiers": {"dram": {}, "nvme": {}}, "hold": {"allowed": True}, "approvals": {"tenant_erase": 2, "hold_release": 2}}


class Base(rig.Suite):
    def call(self, method, path, token, body=None, headers=None):
        return self.server.call(method, path, token, body, headers)

    def world(self, name, policy=POLICY):
        """A tenant with its keys; two of its security officers."""
        tenant = self.server.tenant(name)
        keys = {role: self.server.key(tenant, role) for role in ("tenant_admin", "security_officer", "auditor")}
        keys["second"] = self.server.key(tenant, "security_officer")
        answer = self.call("PUT", f"/v1/tenants/{tenant}/policy", keys["security_officer"], policy)
        self.assertEqual(answer.status, 200, answer)
        return tenant, keys

    def hold(self, keys):
        session = self.server.session(keys["tenant_admin"])
        answer = self.call("POST", "/v1/holds", keys["tenant_admin"],
                           {"scope": {"session_id": session}, "reason": "r", "expires_at": ahead(days=9)})
        self.assertEqual(answer.status, 201, answer)
        return answer.json()["id"]

    def propose(self, path, token):
        answer = self.call("DELETE", path, token)
        self.assertEqual((answer.status, answer.json()["state"]), (202, "pending"), answer)
        return answer.json()

    def approve(self, approval, token, word="approve", **how):
        return self.call("POST", f"/v1/approvals/{approval['id']}:{word}", token, {}, **how)


class Approvals(Base):
    def test_a_hold_is_released_by_two(self):
        tenant, keys = self.world("two-hold")
        hold = self.hold(keys)
        proposed = self.propose(f"/v1/holds/{hold}", keys["tenant_admin"])
        request = {"action": "hold.release", "hold_id": hold, "tenant_id": tenant}
        self.assertEqual((proposed["action"], proposed["request"]), ("hold.release", request))
        text = json.dumps(request, sort_keys=True, separators=(",", ":"))
        self.assertEqual(proposed["request_sha256"], hashlib.sha256(text.encode()).hexdigest())
        self.assertEqual(self.propose(f"/v1/holds/{hold}", keys["tenant_admin"])["id"], proposed["id"], "it waits already")
        self.assertEqual(self.call("GET", f"/v1/holds/{hold}", keys["auditor"]).json()["state"], "active")
        refused = self.approve(proposed, keys["tenant_admin"])
        self.assertEqual((refused.status, refused.code), (403, "forbidden"))
        would = self.call("POST", f"/v1/approvals/{proposed['id']}:approve?dry_run=true", keys["second"], {}).json()
        self.assertEqual(would["would"]["state"], "approved")
        done = self.approve(proposed, keys["second"])
        self.assertEqual((done.status, done.json()["state"]), (200, "approved"), done)
        got = self.call("GET", f"/v1/approvals/{proposed['id']}", keys["auditor"])
        self.assertEqual((got.json(), got.headers["etag"]), (done.json(), done.headers["etag"]))
        released = self.call("GET", f"/v1/holds/{hold}", keys["auditor"]).json()
        self.assertEqual((released["state"], released["released_by"]), ("released", proposed["proposed_by"]))
        again = self.approve(proposed, keys["second"])
        self.assertEqual((again.status, again.code), (409, "invalid_state"), "once")
        actors = rig.wait_for("the log", lambda: (lambda all: all if "approve.grant" in all else None)(
            {e["op"]: e["actor"] for e in self.call("GET", "/v1/audit/entries?limit=200", keys["auditor"]).json()["data"]}))
        self.assertEqual(actors["hold.release"], proposed["proposed_by"])
        self.assertEqual(actors["approve.grant"], done.json()["decided_by"])
        self.assertIn("approve.request", actors)

    def test_nobody_approves_their_own(self):
        _, keys = self.world("two-own")
        proposed = self.propose(f"/v1/holds/{self.hold(keys)}", keys["security_officer"])
        own = self.approve(proposed, keys["security_officer"])
        self.assertEqual((own.status, own.code), (403, "same_subject"))
        self.assertEqual(self.approve(proposed, keys["second"]).status, 200, "the control")

    def test_a_tenant_is_deleted_by_two_and_not_erased_in_another_way(self):
        tenant, keys = self.world("two-delete")
        session = self.server.session(keys["tenant_admin"])
        whole = {"scope": {"tenant_id": tenant}}
        for query in ("", "?dry_run=true"):
            refused = self.call("POST", "/v1/erasures" + query, keys["tenant_admin"], whole)
            self.assertEqual((refused.status, refused.code), (409, "approval_required"))
        proposed = self.propose(f"/v1/tenants/{tenant}?now=true", self.server.operator)
        self.assertEqual(proposed["action"], "tenant.delete_now")
        self.assertEqual(self.call("GET", f"/v1/tenants/{tenant}", self.server.operator).json()["state"], "active")
        self.assertEqual(self.call("GET", f"/v1/sessions/{session}", keys["tenant_admin"]).status, 200)
        self.assertEqual(self.approve(proposed, keys["second"]).status, 200)
        rig.wait_for("the end of the tenant", lambda: self.call(
            "GET", f"/v1/tenants/{tenant}", self.server.operator).json()["state"] == "erased")

    def test_what_is_rejected_is_over(self):
        _, keys = self.world("two-reject")
        hold = self.hold(keys)
        proposed = self.propose(f"/v1/holds/{hold}", keys["tenant_admin"])
        self.assertEqual(self.approve(proposed, keys["second"], "reject").json()["state"], "rejected")
        self.assertEqual(self.approve(proposed, keys["second"]).code, "invalid_state")
        self.assertEqual(self.call("GET", f"/v1/holds/{hold}", keys["auditor"]).json()["state"], "active")
        self.assertNotEqual(self.propose(f"/v1/holds/{hold}", keys["tenant_admin"])["id"], proposed["id"])

    def test_on_another_state_of_things_it_is_stale(self):
        tenant, keys = self.world("two-stale")
        path = f"/v1/tenants/{tenant}"
        first = self.propose(path, self.server.operator)
        self.assertEqual(self.call("PATCH", path, self.server.operator, {"display_name": "New"}, PATCH).status, 200)
        stale = self.approve(first, keys["second"])
        self.assertEqual((stale.status, stale.code), (409, "stale"), "the tenant changed")
        second = self.propose(path, self.server.operator)
        self.assertNotEqual(second["id"], first["id"])
        policy = {**POLICY, "erase": {"require_reason": True}}
        self.assertEqual(self.call("PUT", f"{path}/policy", keys["tenant_admin"], policy).status, 200)
        self.assertEqual(self.approve(second, keys["second"]).code, "stale", "the policy changed")
        hold = self.hold(keys)
        made = self.call("POST", f"{path}/api-keys", self.server.operator, {"name": "a", "roles": ["tenant_admin"]}).json()
        third = self.propose(f"/v1/holds/{hold}", made["secret"])
        self.assertEqual(self.call("DELETE", f"{path}/api-keys/{made['id']}", self.server.operator).status, 200)
        self.assertEqual(self.approve(third, keys["second"]).code, "stale", "who proposed it is gone")
        fourth = self.propose(f"/v1/holds/{hold}", keys["tenant_admin"])
        self.assertEqual(self.approve(fourth, keys["second"]).status, 200, "the control")

    def test_a_hold_stands_before_an_approval(self):
        tenant, keys = self.world("two-held")
        proposed = self.propose(f"/v1/tenants/{tenant}?now=true", self.server.operator)
        hold = self.hold(keys)
        refused = self.approve(proposed, keys["second"])
        self.assertEqual((refused.status, refused.code), (409, "hold_active"))
        self.approve(self.propose(f"/v1/holds/{hold}", keys["tenant_admin"]), keys["second"])
        self.assertEqual(self.approve(proposed, keys["second"]).status, 200, "it waited on")

    def test_another_tenant_has_none(self):
        _, keys = self.world("two-ours")
        _, theirs = self.world("two-theirs")
        proposed = self.propose(f"/v1/holds/{self.hold(keys)}", keys["tenant_admin"])
        for word in ("approve", "reject"):
            self.assertEqual(self.approve(proposed, theirs["second"], word).status, 404)
        self.assertEqual(self.call("GET", f"/v1/approvals/{proposed['id']}", theirs["auditor"]).status, 404)
        self.assertEqual(self.call("GET", "/v1/approvals", theirs["auditor"]).json()["data"], [])
        listed = self.call("GET", "/v1/approvals?state=pending", keys["auditor"]).json()["data"]
        self.assertEqual([a["id"] for a in listed], [proposed["id"]])
        self.assertIn(proposed["id"], [a["id"] for a in self.call("GET", "/v1/approvals?limit=200", self.server.operator).json()["data"]])
        self.assertEqual(self.call("GET", "/v1/approvals?state=approved", keys["auditor"]).json()["data"], [])

    def test_a_policy_asks_for_a_second_person_only_where_there_is_one(self):
        tenant = self.server.tenant("two-none")
        admin = self.server.key(tenant, "tenant_admin")
        asks = {"tiers": {"dram": {}, "nvme": {}}, "approvals": {"tenant_erase": 2}}
        refused = self.call("PUT", f"/v1/tenants/{tenant}/policy", admin, asks)
        self.assertEqual((refused.status, refused.code, refused.pointer), (409, "invalid_state", "/approvals"))
        officer = self.server.key(tenant, "security_officer")
        self.assertEqual(self.call("PUT", f"/v1/tenants/{tenant}/policy", admin, asks).status, 200, "an administrator narrows")
        fewer = {"tiers": {"dram": {}, "nvme": {}}, "approvals": {"tenant_erase": 1}}
        self.assertEqual(self.call("PUT", f"/v1/tenants/{tenant}/policy", admin, fewer).code, "forbidden")
        self.assertEqual(self.call("PUT", f"/v1/tenants/{tenant}/policy", officer, fewer).status, 200)

    def test_without_a_policy_that_asks_nothing_waits(self):
        _, keys = self.world("two-off", {"tiers": {"dram": {}, "nvme": {}}, "hold": {"allowed": True}})
        answer = self.call("DELETE", f"/v1/holds/{self.hold(keys)}", keys["tenant_admin"])
        self.assertEqual((answer.status, answer.json()["state"]), (200, "released"))

    def test_a_repeated_request_is_answered_once_more(self):
        _, keys = self.world("two-once")
        proposed = self.propose(f"/v1/holds/{self.hold(keys)}", keys["tenant_admin"])
        key = {"Idempotency-Key": "approve-1"}
        first, again = (self.approve(proposed, keys["second"], headers=key) for _ in range(2))
        self.assertEqual((first.status, first.body), (again.status, again.body))
        self.assertEqual(again.headers["idempotency-replayed"], "true")


class Killed(Base):
    def test_around_the_decision_it_is_done_or_waits(self):
        tenant, keys = self.world("two-killed")
        for fault, done in (("store/approval-decide/commit=kill@1", False), ("store/approval-decide/committed=kill@1", True),
                            ("approval/decided=kill@1", True)):
            hold = self.hold(keys)
            proposed = self.propose(f"/v1/holds/{hold}", keys["tenant_admin"])
            self.server.stop()
            self.server.start(KVRUN_FAULT=fault)
            rig.wait_for("the server", lambda: self.server.patient("GET", f"/v1/holds/{hold}", keys["auditor"]).status == 200)
            try:
                self.approve(proposed, keys["second"])
            except OSError:
                pass
            try:
                code = self.server.process.wait(60)
            except Exception:
                self.skipTest("this binary has no fault points")
            self.assertEqual(code, -signal.SIGKILL, fault)
            self.server.stop()
            self.server.start()
            state = rig.wait_for("the approval", lambda: self.server.patient(
                "GET", f"/v1/approvals/{proposed['id']}", keys["auditor"]).json().get("state"))
            self.assertEqual(state, "approved" if done else "pending", fault)
            held = self.call("GET", f"/v1/holds/{hold}", keys["auditor"]).json()["state"]
            self.assertEqual(held, "released" if done else "active", fault)


if __name__ == "__main__":
    rig.main(__name__)
