"""`kvrun root accept-loss`: the root of erasure is gone, or is another than the database's. The server is quarantined and says
what to do; what is lost has to be named; after it the server works again, and nothing of before opens or is certified."""
import os
import re
import shutil
import subprocess
import unittest

import rig


class Loss(unittest.TestCase):
    def setUp(self):
        self.server = rig.Server()
        self.addCleanup(self.server.stop)
        self.tenant = self.server.tenant("loss")
        self.admin = self.server.key(self.tenant, "tenant_admin")
        self.root = os.path.join(self.server.state, "root")
        self.sessions = [self.session() for _ in range(2)]

    def session(self):
        answer = self.server.patient("POST", "/v1/sessions", self.admin, {"model": {"id": "m", "revision": "r"}})
        self.assertEqual(answer.status, 201, answer)
        return answer.json()["id"]

    def accept(self, *words, fault=None):
        environment = {**os.environ, **({"KVRUN_FAULT": fault} if fault else {})}
        if os.environ.get("KV_TEST_POSTGRES_BIN"):
            environment["PATH"] = os.environ["KV_TEST_POSTGRES_BIN"] + os.pathsep + environment["PATH"]
        return subprocess.run([rig.options.kvrun, "root", "accept-loss", f"--state.dir={self.server.state}", *words],
                              env=environment, capture_output=True, text=True, timeout=180, check=False)

    def stop(self):
        self.assertEqual(self.server.stop(), 0)

    def erase(self, session):
        answer = self.server.call("POST", "/v1/erasures", self.admin, {"scope": {"session_id": session}}, {"Prefer": "wait=60"})
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)

    def lose_root(self):
        self.stop()
        os.rename(self.root, self.root + ".away")

    def check_quarantined(self):
        ready = self.server.call("GET", "/readyz?verbose", admin=True)
        self.assertEqual(ready.status, 503, ready)
        self.assertIn(b"kvrun root accept-loss", ready.body)
        self.assertTrue(any("kvrun root accept-loss" in line for line in self.server.log))
        self.assertEqual(self.server.call("POST", "/v1/sessions", self.admin, {"model": {"id": "m", "revision": "r"}},
                                          check=False).code, "quarantined")  # no Retry-After: only an operator helps

    def check_works(self, lost):
        self.server.start()
        for session in lost:
            for request in (("GET", f"/v1/sessions/{session}"), ("POST", f"/v1/sessions/{session}:touch"),
                            ("POST", "/v1/erasures", {"scope": {"session_id": session}})):
                answer = self.server.call(*request[:2], self.admin, *request[2:])
                self.assertEqual((answer.status, answer.code), (410, "session_lost"), answer)
        listed = self.server.call("GET", "/v1/sessions?state=lost", self.admin).json()["data"]
        self.assertEqual(sorted(one["id"] for one in listed), sorted(lost))
        usage = self.server.call("GET", f"/v1/tenants/{self.tenant}/usage", self.admin).json()
        self.assertEqual(usage["sessions"]["lost"], len(lost))
        self.erase(self.session())
        self.assertEqual(self.server.call("GET", "/readyz", admin=True).status, 200)
        certified = self.server.call("GET", "/v1/certificates", self.admin).json()["data"]
        self.assertFalse({one["session_id"] for one in certified} & set(lost))

    def test_a_root_that_is_gone(self):
        self.lose_root()
        self.server.start()
        self.check_quarantined()
        refused = self.accept("--lose-sessions=2")
        self.assertEqual((refused.returncode, refused.stdout), (5, ""), refused)
        self.assertIn("another kvrun runs", refused.stderr)
        self.stop()
        asked = self.accept()
        self.assertEqual((asked.returncode, asked.stderr), (2, ""), asked)
        self.assertIn("2 sessions are lost", asked.stdout)
        for wrong in ("1", "3", "", "all"):
            self.assertEqual(self.accept(f"--lose-sessions={wrong}").returncode, 2, wrong)
        for point in ("loss/staged", "store/root-loss/commit", "loss/committed"):
            cut = self.accept("--lose-sessions", "2", fault=f"{point}=kill")
            self.assertEqual(cut.returncode, -9, cut)
        again = self.accept("--lose-sessions=2")  # the first one that was committed is whole at the server's start
        self.assertEqual(again.returncode, 5, again)
        self.check_works(self.sessions)
        auditor = self.server.call("POST", "/v1/api-keys", self.server.operator, {"name": "a", "roles": ["auditor"]}).json()
        entries = rig.wait_for("its entry", lambda: self.server.call(
            "GET", "/v1/audit/entries?op=root.accept_loss", auditor["secret"]).json()["data"])
        self.assertEqual(len(entries), 1, entries)
        # The old root, found again, opens nothing any more and is not taken.
        self.stop()
        os.rename(self.root, self.root + ".fresh")
        os.rename(self.root + ".away", self.root)
        self.server.start()
        self.check_quarantined()
        self.stop()
        os.rename(self.root + ".fresh", self.root)
        self.server.start()
        self.assertEqual(self.server.call("GET", "/readyz", admin=True).status, 200)

    def test_a_root_that_is_older_than_the_database(self):
        self.stop()
        shutil.copy2(self.root, self.root + ".old")
        self.server.start()
        self.erase(self.sessions.pop())
        self.stop()
        shutil.copy2(self.root, self.root + ".current")
        os.replace(self.root + ".old", self.root)
        self.server.start()
        self.check_quarantined()
        self.stop()
        self.assertIn("1 sessions are lost", self.accept().stdout)
        # Nothing was changed by asking: the right root heals.
        os.replace(self.root, self.root + ".old")
        shutil.copy2(self.root + ".current", self.root)
        self.server.start()
        self.assertEqual(self.server.call("GET", f"/v1/sessions/{self.sessions[0]}", self.admin).status, 200)
        self.stop()
        os.replace(self.root + ".old", self.root)
        done = self.accept("--lose-sessions=1")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.check_works(self.sessions)

    def test_nothing_is_given_up_that_is_not_lost(self):
        self.stop()
        for words in ((), ("--lose-sessions=2",), ("--lose-sessions=2", "--lost-provider=file")):
            refused = self.accept(*words)
            self.assertEqual((refused.returncode, refused.stdout), (5, ""), refused)
            self.assertIn("nothing is lost", refused.stderr)
        self.assertEqual(self.accept("--lose-everything").returncode, 2)
        self.assertEqual(self.accept("--lose-sessions").returncode, 2)
        self.server.start()
        self.assertEqual(self.server.call("GET", f"/v1/sessions/{self.sessions[0]}", self.admin).status, 200)

    def test_a_provider_that_is_gone_has_to_be_named(self):
        self.server.database("UPDATE kvrun.kroot SET provider = 'pkcs11'")
        self.lose_root()
        refused = self.accept("--lose-sessions=2")
        self.assertEqual(refused.returncode, 2, refused)
        self.assertRegex(refused.stderr, re.escape('"pkcs11": set root.provider to it'))
        self.assertEqual(self.accept("--lose-sessions=2", "--lost-provider=transit").returncode, 2)
        done = self.accept("--lose-sessions=2", "--lost-provider=pkcs11")
        self.assertEqual(done.returncode, 0, done)
        self.check_works(self.sessions)


if __name__ == "__main__":
    rig.main(__name__)
