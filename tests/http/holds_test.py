"""Legal holds: placing and releasing, who may, what they keep from being erased, and a kill between release and erasure."""
import datetime
import signal

import rig
from engine import Engine

E26 = "0" * 26
PERSONAL = {"tiers": {"dram": {}, "nvme": {}}, "data_class": "personal", "hold": {"allowed": True, "max_days": 10}}
ALLOWED = {"tiers": {"dram": {}, "nvme": {}}, "hold": {"allowed": True, "max_days": 10}}


def ahead(**time):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(**time)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Base(rig.Suite):
    policy = ALLOWED

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("held")
        cls.admin, cls.officer = cls.server.key(cls.tenant, "tenant_admin"), cls.server.key(cls.tenant, "security_officer")
        cls.auditor, cls.token = cls.server.key(cls.tenant, "auditor"), cls.server.key(cls.tenant, "engine")
        if cls.policy:
            cls.allow(cls.tenant, cls.officer, cls.policy)

    @classmethod
    def allow(cls, tenant, officer, policy):
        answer = cls.server.call("PUT", f"/v1/tenants/{tenant}/policy", officer, policy)
        assert answer.status == 200, answer

    def call(self, method, path, body=None, token=None, headers=None):
        return self.server.call(method, path, token or self.admin, body, headers)

    def session(self, **members):
        answer = self.server.patient("POST", "/v1/sessions", self.admin, {"model": {"id": "m", "revision": "r"}, **members})
        self.assertEqual(answer.status, 201, answer)
        return answer.json()["id"]

    def ask(self, scope, query="", headers=None, token=None, **members):
        return self.call("POST", "/v1/holds" + query, {"scope": scope, "reason": "case 17", "expires_at": ahead(days=9), **members},
                         token, headers)

    def place(self, scope, **members):
        answer = self.ask(scope, **members)
        self.assertEqual(answer.status, 201, answer)
        return answer.json()["id"]

    def release(self, hold, **how):
        answer = self.call("DELETE", f"/v1/holds/{hold}", **how)
        self.assertEqual((answer.status, answer.json()["state"]), (200, "released"), answer)
        return answer

    def erase(self, scope, wait=30, query=""):
        return self.call("POST", "/v1/erasures" + query, {"scope": scope}, headers={"Prefer": f"wait={wait}"})

    def blocked(self, scope):
        answer = self.erase(scope)
        self.assertEqual((answer.status, answer.json()["state"]), (202, "blocked_hold"), answer)
        return answer.json()

    def erasure(self, erasure):
        return self.call("GET", f"/v1/erasures/{erasure}").json()

    def certified(self, erasure):
        return rig.wait_for("the certificate", lambda: (lambda e: e if e["state"] == "certified" else None)(self.erasure(erasure)))


class Holds(Base):
    def test_what_is_placed_is_read_back_and_released(self):
        session = self.session()
        made = self.ask({"session_id": session}, ground="legal_claims", reference="TICKET-99")
        self.assertEqual((made.status, made.json()["state"], made.json()["sessions"]), (201, "active", 1), made)
        got = self.call("GET", made.headers["location"], token=self.auditor)
        self.assertEqual((got.json(), got.headers["etag"]), (made.json(), made.headers["etag"]))
        same = self.call("GET", made.headers["location"], headers={"If-None-Match": got.headers["etag"]})
        self.assertEqual((same.status, same.body), (304, b""))
        late = self.call("DELETE", made.headers["location"], headers={"If-Match": '"9"'})
        self.assertEqual((late.status, late.code), (412, "precondition_failed"))
        would = self.call("DELETE", made.headers["location"] + "?dry_run=true").json()
        self.assertEqual((would["dry_run"], would["would"]["state"]), (True, "released"))
        self.assertEqual(self.call("GET", made.headers["location"]).json(), made.json())
        self.release(made.json()["id"], headers={"If-Match": got.headers["etag"]})
        again = self.call("DELETE", made.headers["location"])
        self.assertEqual((again.status, again.code), (409, "invalid_state"))
        text = self.server.database("SELECT string_agg(h::text, ' ') FROM kvrun.hold h")
        self.assertTrue(text is None or ("TICKET" not in text and "case" not in text))

    def test_a_repeated_request_is_answered_once_more_and_a_dry_run_writes_nothing(self):
        scope, key = {"session_id": self.session()}, {"Idempotency-Key": "hold-1"}
        would = self.ask(scope, "?dry_run=true", key).json()["would"]
        self.assertEqual((would["state"], would["sessions"]), ("active", 1))
        self.assertEqual(self.call("GET", f"/v1/holds/{would['id']}").status, 404)
        at = ahead(days=1)
        first, again = self.ask(scope, "", key, expires_at=at), self.ask(scope, "", key, expires_at=at)
        self.assertEqual((first.status, first.body), (again.status, again.body))
        self.assertEqual(again.headers["idempotency-replayed"], "true")

    def test_what_is_no_hold_is_refused(self):
        session = self.session()
        for scope in ({}, {"session_id": session, "tenant_id": self.tenant}, {"label": {}}, {"label": {"a": 1}},
                      {"label": {"a": "x" * 129}}, {"session_id": "era_" + E26}, {"external_id": "x"}):
            self.assertEqual(self.ask(scope).code, "invalid_request", scope)
        for member in ({"ground": "because"}, {"expires_at": ahead(seconds=-1)}, {"expires_at": "soon"}, {"reason": ""},
                       {"reason": "x" * 513}, {"more": 1}):
            self.assertEqual(self.ask({"session_id": session}, **member).status, 400, member)
        self.assertEqual(self.ask({"session_id": "ses_" + E26}).status, 404)
        self.assertEqual(self.ask({"tenant_id": "ten_" + E26}).status, 404)
        late = self.ask({"session_id": session}, expires_at=ahead(days=10, seconds=60))
        self.assertEqual((late.status, late.code, late.pointer), (403, "policy_denied", "/expires_at"))
        self.place({"session_id": session}, expires_at=ahead(days=10, seconds=-60))

    def test_roles_and_tenants(self):
        hold = self.place({"session_id": self.session()})
        for token in (self.auditor, self.token, self.server.operator):
            self.assertEqual(self.ask({"session_id": "ses_" + E26}, token=token).status, 403)
            self.assertEqual(self.call("DELETE", f"/v1/holds/{hold}", token=token).status, 403)
        tenant = self.server.tenant("held-not")
        admin = self.server.key(tenant, "tenant_admin")
        for method in ("GET", "DELETE"):
            self.assertEqual(self.call(method, f"/v1/holds/{hold}", token=admin).status, 404)
        self.assertEqual(self.call("GET", "/v1/holds", token=admin).json()["data"], [])
        session = self.server.session(admin)
        refused = self.ask({"session_id": session}, token=admin)
        self.assertEqual((refused.status, refused.code), (403, "policy_denied"))
        self.assertIn("no holds", refused.json()["detail"])
        denied = self.call("PUT", f"/v1/tenants/{tenant}/policy", ALLOWED, admin)
        self.assertEqual((denied.status, denied.code), (403, "forbidden"), "an administrator does not allow them")

    def test_the_list_has_pages_and_states(self):
        holds = [self.place({"session_id": self.session()}) for _ in range(3)]
        self.release(holds[1])
        page = self.call("GET", "/v1/holds?limit=2&order=desc", token=self.auditor).json()
        self.assertEqual([h["id"] for h in page["data"]], holds[:0:-1])
        more = self.call("GET", f"/v1/holds?limit=1&order=desc&state=active&cursor={page['next_cursor']}")
        self.assertEqual(more.status, 400, "a cursor of another list")
        more = self.call("GET", f"/v1/holds?limit=2&order=desc&cursor={page['next_cursor']}").json()
        self.assertEqual(more["data"][0]["id"], holds[0])
        self.assertIn(holds[1], [h["id"] for h in self.call("GET", "/v1/holds?state=released&limit=200").json()["data"]])
        active = [h["id"] for h in self.call("GET", "/v1/holds?state=active&limit=200").json()["data"]]
        self.assertTrue(holds[1] not in active and holds[0] in active)
        self.assertEqual(self.call("GET", "/v1/holds?state=over").status, 400)


class Erasing(Base):
    def test_a_held_session_is_refused_kept_and_erased_when_the_hold_is_released(self):
        engine = Engine(self.server, self.token).open_pool()
        session = self.server.session(self.token)
        engine.fill(0, "held")
        self.assertEqual(engine.offload(session, ["b0"], range(1)).status, 200)
        hold = self.place({"session_id": session})
        self.assertEqual(engine.lookup(session, ["b0"]).status, 200, "a hold alone refuses nothing")
        self.assertEqual(self.erase({"session_id": session}, query="?dry_run=true").json()["would"]["holds"], 1)
        erasure = self.blocked({"session_id": session})
        self.assertEqual(erasure["hold_id"], hold)
        self.assertNotIn("eta_ms", erasure)
        self.assertEqual(self.erase({"session_id": session}).json()["id"], erasure["id"], "there is one")
        self.assertEqual(self.call("GET", f"/v1/sessions/{session}").status, 410)
        self.assertEqual(engine.lookup(session, ["b0"]).status, 410)
        held = self.call("GET", "/v1/sessions?state=held").json()["data"]
        self.assertEqual([(s["id"], s["state"], s["key"]["state"]) for s in held], [(session, "held", "suspended")])
        self.assertEqual(self.call("GET", f"/v1/erasures/{erasure['id']}/certificate").status, 404)
        self.assertEqual(self.call("GET", f"/v1/holds/{hold}").json()["erasures_blocked"], 1)
        more = self.place({"session_id": session})
        self.release(hold)
        rig.wait_for("the other hold to be named", lambda: self.erasure(erasure["id"])["hold_id"] == more)
        self.assertEqual(self.erasure(erasure["id"])["state"], "blocked_hold")
        self.release(more)
        end = self.certified(erasure["id"])
        self.assertEqual((end["hold_id"], end["requested_at"]), (more, erasure["requested_at"]))
        self.assertLess(end["blocked_at"], end["unblocked_at"])
        self.assertEqual(self.call("GET", f"/v1/erasures/{erasure['id']}/certificate").status, 200)
        late = self.ask({"session_id": session})
        self.assertEqual((late.status, late.code), (409, "irreversible"))
        ops = rig.wait_for("the log", lambda: (lambda all: all if all.count("hold.release") == 2 else None)(
            [e["op"] for e in self.call("GET", "/v1/audit/entries?session_id=" + session, token=self.auditor).json()["data"]]))
        self.assertEqual((ops.count("hold.create"), ops.count("hold.release")), (2, 2))

    def test_of_many_the_held_ones_wait_and_the_others_go(self):
        sessions = [self.session(labels={"user": "7", "n": str(n)}) for n in range(4)]
        hold = self.place({"label": {"n": "2"}})
        self.assertEqual(self.call("GET", f"/v1/holds/{hold}").json()["scope"], {"label": {"n": None}})
        group = self.erase({"label": {"user": "7"}}, wait=0).json()["id"]
        seen = rig.wait_for("the others", lambda: (lambda e: e if e["sessions"]["certified"] == 3 else None)(self.erasure(group)))
        self.assertEqual(seen["state"], "blocked_hold")
        members = self.call("GET", f"/v1/erasures?group_id={group}&state=blocked_hold").json()["data"]
        self.assertEqual([(m["session_id"], m["hold_id"]) for m in members], [(sessions[2], hold)])
        self.release(hold)
        end = self.certified(group)
        self.assertEqual(end["sessions"], {"matched": 4, "certified": 4, "quarantined": 0, "complete": True})

    def test_a_tenant_with_a_hold_does_not_go_as_a_whole(self):
        tenant = self.server.tenant("held-whole")
        admin, officer = self.server.key(tenant, "tenant_admin"), self.server.key(tenant, "security_officer")
        self.allow(tenant, officer, ALLOWED)
        self.server.session(admin)
        hold = self.ask({"tenant_id": tenant}, token=officer).json()["id"]
        erase = ("POST", "/v1/erasures", {"scope": {"tenant_id": tenant}}, admin)
        for request in (erase, ("POST", "/v1/erasures?dry_run=true", *erase[2:]),
                        ("DELETE", f"/v1/tenants/{tenant}?now=true", None, self.server.operator),
                        ("DELETE", f"/v1/tenants/{tenant}", None, self.server.operator)):
            answer = self.call(*request)
            self.assertEqual((answer.status, answer.code), (409, "hold_active"), request)
            self.assertIn(hold, answer.json()["detail"])
        self.release(hold, token=admin)
        self.assertEqual(self.call(*erase).status, 202)

    def test_a_release_is_seen_on_the_stream(self):
        before = self.call("GET", "/v1/events?poll=1&types=hold.state", token=self.auditor).json()
        hold = self.place({"session_id": self.session()})
        self.release(hold)
        events = self.call("GET", "/v1/events?poll=1&after=0000000000000000-0&types=hold.state", token=self.auditor).json()
        states = [e["state"] for e in events["data"] if hold in str(e)]
        self.assertEqual((states, "data" in before), (["active", "released"], True))


class Personal(Base):
    policy = PERSONAL

    def test_personal_data_is_held_on_a_named_ground(self):
        session = self.session()
        refused = self.ask({"session_id": session})
        self.assertEqual((refused.status, refused.code, refused.pointer), (400, "invalid_request", "/ground"))
        self.place({"session_id": session}, ground="legal_obligation")


class Killed(Base):
    def test_between_release_and_erasure_nothing_is_lost(self):
        for fault in ("store/hold-release/committed=kill@1", "hold/released=kill@1", "store/hold-let-go/commit=kill@1",
                      "store/hold-let-go/committed=kill@1", "hold/let-go=kill@1"):
            session = self.session()
            hold = self.place({"session_id": session})
            erasure = self.blocked({"session_id": session})["id"]
            self.server.stop()
            self.server.start(KVRUN_FAULT=fault)
            rig.wait_for("the server", lambda: self.server.patient("GET", f"/v1/holds/{hold}", self.admin).status == 200)
            try:
                self.call("DELETE", f"/v1/holds/{hold}")
            except OSError:
                pass
            try:
                code = self.server.process.wait(60)
            except Exception:
                self.skipTest("this binary has no fault points")
            self.assertEqual(code, -signal.SIGKILL, fault)
            self.server.stop()
            self.server.start()
            rig.wait_for("the hold", lambda: self.server.patient("GET", f"/v1/holds/{hold}", self.admin).json()["state"] == "released")
            self.certified(erasure)


if __name__ == "__main__":
    rig.main(__name__)
