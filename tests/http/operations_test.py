"""Long-running operations: start, wait, look, cancel, the bound on open ones, kill and start at each step."""
import datetime
import signal

import rig
from engine import Engine

E26 = "0" * 26


def seconds(begin, end):
    begin, end = (datetime.datetime.fromisoformat(at.replace("Z", "+00:00")) for at in (begin, end))
    return (end - begin).total_seconds()


class Operations(rig.Suite):
    server_options = ("--retention.operations=90m",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant, cls.other = cls.server.tenant("mine"), cls.server.tenant("theirs")
        cls.admin, cls.theirs = cls.server.key(cls.tenant, "tenant_admin"), cls.server.key(cls.other, "tenant_admin")
        cls.server.session(cls.admin)
        rig.wait_for("a head", lambda: cls.server.call("GET", "/v1/audit/checkpoint", cls.admin).status == 200)

    def start(self, path="/v1/audit:verify", token=None, **headers):
        return self.server.call("POST", path, token or self.admin,
                                headers={name.replace("_", "-"): value for name, value in headers.items()})

    def get(self, path, token=None, wait=0):
        return self.server.call("GET", path, token or self.admin, headers={"Prefer": f"wait={wait}"} if wait else {})

    def test_a_start_is_answered_at_once_and_its_end_can_be_waited_for(self):
        answer = self.start()
        self.assertEqual(answer.status, 202, answer)
        self.assertIn("retry-after", answer.headers)
        end = self.get(answer.headers["location"], wait=30)
        self.assertEqual((end.json()["state"], end.json()["done"]), ("succeeded", True))
        self.assertTrue(end.json()["response"]["ok"])
        self.assertNotIn("retry-after", end.headers)
        self.assertEqual(seconds(end.json()["ended_at"], end.json()["expires_at"]), 5400)
        self.assertEqual(self.get("/v1/operations").json()["data"][0]["id"], end.json()["id"])

    def test_draining_memory_is_one(self):
        answer = self.start("/v1/tiers/dram:drain", self.server.operator, Prefer="wait=60")
        self.assertEqual((answer.status, answer.json()["kind"], answer.json()["state"]), (200, "tier.drain", "succeeded"))
        self.assertEqual(answer.json()["response"]["tier"], "dram")
        self.assertEqual(self.get(answer.headers["location"]).status, 404, "the operator's is not the tenant's")

    def test_draining_nvme_forgets_what_it_has_and_keeps_it_empty(self):
        engine = Engine(self.server, self.server.key(self.tenant, "engine"), name="drained").open_pool().beat()
        session = self.server.session(self.admin)
        engine.fill(0, "a")
        self.assertEqual(engine.offload(session, ["a"], [0], wait="durable").json()["results"], ["stored"])
        answer = self.start("/v1/tiers/nvme:drain", self.server.operator, Prefer="wait=60")
        self.assertEqual((answer.status, answer.json()["kind"], answer.json()["state"]), (200, "tier.drain", "succeeded"))
        self.assertEqual(answer.json()["response"], {"blocks": 1, "tier": "nvme"})
        try:
            tier = self.get("/v1/tiers/nvme", self.server.operator).json()
            self.assertEqual((tier["state"], tier["objects"]), ("draining", 0))
            self.assertEqual(engine.lookup(session, ["a"]).json()["tiers"], ["dram"])
            down = self.start("/v1/tiers/dram:drain", self.server.operator, Prefer="wait=60").json()
            self.assertEqual((down["state"], down["error"]["code"]), ("failed", "no_space"))
        finally:
            up = self.server.call("PATCH", "/v1/tiers/nvme", self.server.operator, {"state": "up"},
                                  {"Content-Type": "application/merge-patch+json"})
            self.assertEqual(up.json()["state"], "up")
        engine.fill(1, "b")
        self.assertEqual(engine.offload(session, ["b"], [1], wait="durable").json()["results"], ["stored"])
        refused = self.start("/v1/tiers/nvme:drain", self.admin)
        self.assertEqual((refused.status, refused.code), (403, "forbidden"))

    def test_another_tenants_does_not_exist(self):
        where = self.start().headers["location"]
        for path, method in ((where, "GET"), (where + ":cancel", "POST")):
            answer = self.server.call(method, path, self.theirs)
            self.assertEqual((answer.status, answer.code), (404, "not_found"))
        self.assertEqual(self.get(f"/v1/operations/opr_{E26}").status, 404)
        self.assertNotIn(where.split("/")[-1], [o["id"] for o in self.get("/v1/operations", self.theirs).json()["data"]])

    def test_the_same_idempotency_key_starts_one(self):
        one, two = (self.start(Idempotency_Key="once") for _ in range(2))
        self.assertEqual(one.json()["id"], two.json()["id"])
        self.assertEqual(two.headers["idempotency-replayed"], "true")

    def test_an_end_cannot_be_cancelled(self):
        where = self.start(Prefer="wait=30").headers["location"]
        answer = self.server.call("POST", where + ":cancel", self.admin)
        self.assertEqual((answer.status, answer.code), (409, "invalid_state"))

    def test_the_list_has_filters(self):
        self.start(Prefer="wait=30")
        states = {o["state"] for o in self.get("/v1/operations?state=succeeded&kind=audit.verify").json()["data"]}
        self.assertEqual(states, {"succeeded"})
        self.assertEqual(self.get("/v1/operations?kind=tier.drain").json()["data"], [])
        self.assertEqual(self.get("/v1/operations?kind=x").code, "invalid_request")

    def test_an_entry_says_who_started_it(self):
        self.start(Prefer="wait=30")
        rig.wait_for("the entry", lambda: self.get("/v1/audit/entries?op=operation.start").json()["data"])


class Proof(rig.Suite):
    """What is left of an erased session, tried for an auditor."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("proof")
        cls.keys = {role: cls.server.key(cls.tenant, role) for role in ("tenant_admin", "auditor", "engine", "viewer")}
        cls.keys["security_officer"] = cls.server.key(cls.tenant, "security_officer")
        session = cls.server.session(cls.keys["tenant_admin"])
        answer = cls.server.call("POST", "/v1/erasures", cls.keys["tenant_admin"], {"scope": {"session_id": session}},
                                 {"Prefer": "wait=30"})
        cls.erasure = answer.json()

    def prove(self, role="auditor", erasure=None, body=None, wait=30):
        return self.server.call("POST", f"/v1/erasures/{erasure or self.erasure['id']}:prove", self.keys[role], body,
                                headers={"Prefer": f"wait={wait}"} if wait else {})

    def test_it_is_an_operation_with_a_verdict(self):
        answer = self.prove()
        self.assertEqual((answer.status, answer.json()["kind"], answer.json()["state"]), (200, "erasure.prove", "succeeded"))
        response = answer.json()["response"]
        self.assertEqual((response["ok"], response["verdict"], response["certificate_ok"]), (True, "nothing_left", True))
        self.assertEqual(response["erasure"], self.erasure["id"])
        self.assertEqual([(t["name"], t["opened"]) for t in response["tiers"]], [("dram", 0), ("nvme", 0)])
        self.assertEqual(self.prove(wait=0).status, 202)

    def test_who_may(self):
        for role, status in (("tenant_admin", 200), ("security_officer", 200), ("engine", 403), ("viewer", 403)):
            self.assertEqual(self.prove(role).status, status, role)
        where = self.prove("security_officer").headers["location"]
        self.assertEqual(self.server.call("GET", where, self.keys["security_officer"]).status, 200)
        other = self.server.key(self.server.tenant("other"), "auditor")
        answer = self.server.call("POST", f"/v1/erasures/{self.erasure['id']}:prove", other)
        self.assertEqual((answer.status, answer.code), (404, "not_found"))
        self.assertEqual(self.prove(erasure=f"era_{E26}").status, 404)

    def test_how_many(self):
        self.assertEqual(self.prove(body={"samples": 64}).status, 200)
        for wrong in (0, 65, "x"):
            self.assertEqual(self.prove(body={"samples": wrong}).code, "invalid_request", wrong)

    def test_the_log_has_it(self):
        self.prove()
        found = rig.wait_for("the entry", lambda: self.server.call("GET", "/v1/audit/entries?op=erase.prove",
                                                                   self.keys["auditor"]).json()["data"])
        self.assertIn(self.erasure["id"], found[0]["entry"])


class Full(rig.Suite):
    """As many operations as may be are open, and none goes on: cancelling and erasing still work."""
    server_options = ("--rate.default=0", "--rate.erase=1000000")

    def test_one_more_is_busy_while_cancel_and_erase_work(self):
        tenant = self.server.tenant("full")
        admin = self.server.key(tenant, "tenant_admin")
        session = self.server.session(admin)
        rig.wait_for("a head", lambda: self.server.call("GET", "/v1/audit/checkpoint", admin).status == 200)
        self.server.stop()
        self.server.start(KVRUN_FAULT="operation/begun=fail")  # the executor gets no further
        callers = [admin] * 8 + [self.server.operator] * 56  # a tenant has an eighth of the places
        started = [self.server.call("POST", "/v1/audit:verify", admin) for _ in range(8)]
        more = self.server.call("POST", "/v1/audit:verify", admin)
        if any(o["state"] == "succeeded" for o in
               self.server.call("GET", "/v1/operations?limit=200", admin).json()["data"]):
            self.skipTest("this binary has no fault points")
        self.assertEqual((more.status, more.code), (503, "busy"), "of the tenant's")
        started += [self.server.call("POST", "/v1/audit:verify", caller) for caller in callers[8:]]
        self.assertEqual({a.status for a in started}, {202})
        more = self.server.call("POST", "/v1/audit:verify", self.server.operator)
        self.assertEqual((more.status, more.code), (503, "busy"), "of all")
        self.assertIn("retry-after", more.headers)
        answer = self.server.call("POST", started[0].headers["location"] + ":cancel", admin)
        self.assertEqual(answer.status, 200, answer)
        rig.wait_for("its end", lambda: self.server.call("GET", started[0].headers["location"], admin).json()["done"])
        waited = self.server.call("POST", "/v1/audit:verify", admin, headers={"Prefer": "wait=1"})
        self.assertEqual((waited.status, waited.headers.get("preference-applied"), waited.json()["done"]), (202, "wait=1", False))
        callers, started = callers + [admin], started + [waited]
        answer = self.server.call("POST", "/v1/erasures", admin, {"scope": {"session_id": session}}, {"Prefer": "wait=30"})
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"))
        for caller, start in zip(callers, started):
            answer = self.server.call("POST", start.headers["location"] + ":cancel", caller)
            self.assertEqual((answer.status, answer.json()["cancel_requested"]), (200, True), answer)
        again = self.server.call("POST", started[0].headers["location"] + ":cancel", admin)
        self.assertEqual(again.status, 200, "cancelling twice is fine")
        rig.wait_for("their ends", lambda: all(o["state"] == "canceled" for o in self.server.call(
            "GET", "/v1/operations?limit=200", admin).json()["data"]), 40)
        rig.wait_for("room", lambda: self.server.call("POST", "/v1/audit:verify", admin).status == 202)


class Killed(rig.Suite):
    """Killed at each step of an operation, it goes on at the next start and ends once."""

    def test_goes_on_after_a_kill_at_each_step(self):
        tenant = self.server.tenant("killed")
        admin = self.server.key(tenant, "tenant_admin")
        self.server.session(admin)
        rig.wait_for("a head", lambda: self.server.call("GET", "/v1/audit/checkpoint", admin).status == 200)
        for path, token in (("/v1/audit:verify", lambda: admin), ("/v1/tiers/dram:drain", lambda: self.server.operator),
                            ("/v1/tiers/nvme:drain", lambda: self.server.operator)):
            for fault in ("store/operation-start/committed", "store/operation-begin/commit", "store/operation-begin/committed",
                          "operation/begun", "operation/piece", "store/operation-end/commit", "store/operation-end/committed"):
                self.server.stop()
                self.server.start(KVRUN_FAULT=fault + "=kill@1")
                try:
                    self.server.call("POST", path, token())
                except OSError:
                    pass
                try:
                    code = self.server.process.wait(20)
                except Exception:
                    self.skipTest("this binary has no fault points")
                self.assertEqual(code, -signal.SIGKILL, fault)
                self.server.stop()
                self.server.start()
                last = rig.wait_for("the operation", lambda: self.server.call(
                    "GET", "/v1/operations?limit=1", token()).json()["data"])[0]
                end = self.server.call("GET", f"/v1/operations/{last['id']}", token(), headers={"Prefer": "wait=30"}).json()
                self.assertEqual(end["state"], "succeeded", f"{path} {fault} {end}")


if __name__ == "__main__":
    rig.main(__name__)
