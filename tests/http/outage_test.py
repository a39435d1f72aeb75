"""The database goes away and comes back: what needs it says so at once, what does not goes on within the lease, and
everything heals by itself."""
import os
import signal
import time

import rig
from engine import Engine, answered

LEASE = 6


class Outage(rig.Suite):
    server_options = (f"--instance.lease={LEASE}s",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("outage")

    def setUp(self):
        """A key, an engine and a session with a block, all just used: known under the lease for all of its time."""
        self.admin = self.server.key(self.tenant, "tenant_admin")
        self.token = self.server.key(self.tenant, "engine")
        self.engine = Engine(self.server, self.token, name=self.id()).open_pool()
        self.session = self.server.session(self.token)
        self.page = self.engine.fill(0, "outage")
        stored = rig.wait_for("the block", lambda: answered(self.engine.offload(self.session, ["a"], [0])))
        self.assertEqual(stored.json()["results"], ["stored"])

    def end_database(self):
        os.kill(self.server.postmaster(), signal.SIGINT)

    def restored(self):
        return self.engine.restore(self.session, ["a"], [1])

    def ready(self):
        """The names of checks that fail."""
        answer = self.server.call("GET", "/readyz")
        failing = [line.split()[0][3:] for line in answer.body.decode().splitlines() if line.startswith("[-]")]
        self.assertEqual(answer.status, 503 if failing else 200)
        return failing

    def refused(self, method, path, token, body=None):
        begun = time.monotonic()
        answer = self.server.call(method, path, token, body)
        self.assertEqual(answer.status, 503, f"{path} {answer}")
        self.assertIn(answer.code, ("db_unavailable", "lease_expired", "audit_unavailable", "busy"))
        self.assertTrue(answer.json()["retryable"])
        self.assertGreaterEqual(int(answer.headers["retry-after"]), 1)
        self.assertLess(time.monotonic() - begun, 40)
        return answer.code

    def test_without_a_database(self):
        folder = os.path.join(self.server.cluster_folder, "data")
        hidden = folder + ".hidden"
        begun = time.monotonic()
        os.rename(folder, hidden)  # so that the server, which looks after its private database, cannot start it again
        try:
            os.kill(self.server.postmaster("data.hidden"), signal.SIGINT)
            rig.wait_for("a refusal", lambda: self.server.call(
                "POST", "/v1/sessions", self.token, {"model": {"id": "m", "revision": "r"}}).status == 503)
            self.transfers_go_on_within_the_lease(begun)
            self.everything_that_needs_it_is_refused()
            self.assertEqual(self.server.call("GET", "/livez").status, 200)
            rig.wait_for("readyz to say db", lambda: "db" in self.ready())
            self.keys_close_when_the_lease_ends()
        finally:
            os.rename(hidden, folder)
        self.it_heals()

    def transfers_go_on_within_the_lease(self, begun):
        for route in (self.restored, lambda: self.engine.offload(self.session, ["b"], [0]),
                      lambda: self.engine.lookup(self.session, ["a"])):
            answer = route()
            if time.monotonic() - begun < LEASE * 0.5:
                self.assertEqual(answer.status, 200, answer)
        self.assertEqual(self.engine.page(1), self.page)

    def everything_that_needs_it_is_refused(self):
        model = {"model": {"id": "m", "revision": "r"}}
        self.refused("POST", "/v1/sessions", self.token, model)
        self.refused("POST", "/v1/tenants", self.server.operator, {"name": "not-now"})
        self.refused("POST", "/v1/erasures", self.token, {"scope": {"session_id": self.session}})
        self.refused("GET", f"/v1/sessions/{self.session}", self.token)
        self.refused("GET", f"/v1/tenants/{self.tenant}", self.server.operator)

    def keys_close_when_the_lease_ends(self):
        rig.wait_for("the lease's end", lambda: "lease" in self.ready())
        before = self.engine.fill(1, "mine")
        body = {"session_id": self.session, "pool_id": self.engine.pool, "hashes": ["0" * 64], "slots": [1]}
        code = self.refused("POST", "/v1/restores", self.token, body)
        self.assertIn(code, ("lease_expired", "db_unavailable"))
        self.assertEqual(self.engine.page(1), before)

    def it_heals(self):
        rig.wait_for("readiness", lambda: self.ready() == [])
        answer = self.server.patient("GET", f"/v1/sessions/{self.session}", self.token)
        self.assertEqual(answer.status, 200, "the session was not erased: the request was refused")
        engine = Engine(self.server, self.token, name="healed").open_pool()
        answer = rig.wait_for("a restore", lambda: answered(engine.restore(self.session, ["a"], [2])))
        self.assertEqual(answer.json()["results"], ["restored"])
        self.assertEqual(engine.page(2), self.page)
        erased = self.server.patient("POST", "/v1/erasures", self.token, {"scope": {"session_id": self.session}},
                                     {"Prefer": "wait=30"})
        self.assertEqual((erased.status, erased.json()["state"]), (200, "certified"))

    def test_a_database_that_restarts_is_hardly_noticed(self):
        self.end_database()

        def made():
            answer = self.server.call("POST", "/v1/sessions", self.token, {"model": {"id": "m", "revision": "r"}})
            self.assertIn(answer.status, (201, 503))
            return answer.status == 201

        rig.wait_for("a session", made)
        rig.wait_for("readiness", lambda: self.ready() == [])
        answer = rig.wait_for("a restore", lambda: answered(self.restored()))
        self.assertEqual(answer.json()["results"], ["restored"])

    def test_a_database_that_stands_still_is_not_waited_for_for_ever(self):
        stopped = [self.server.postmaster()]
        for name in os.listdir("/proc"):
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8") as stat:
                    if int(stat.read().rsplit(")", 1)[1].split()[1]) == stopped[0]:
                        stopped.append(int(name))
            except (OSError, ValueError, IndexError):
                continue
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        try:
            answer = self.restored()
            self.assertEqual(answer.status, 200, answer)
            self.refused("POST", "/v1/sessions", self.token, {"model": {"id": "m", "revision": "r"}})
            self.assertEqual(self.server.call("GET", "/livez").status, 200)
        finally:
            for process in stopped:
                try:
                    os.kill(process, signal.SIGCONT)
                except ProcessLookupError:
                    pass
        rig.wait_for("readiness", lambda: self.ready() == [])
        self.assertEqual(self.server.patient("GET", f"/v1/sessions/{self.session}", self.token).status, 200)


if __name__ == "__main__":
    rig.main(__name__)
