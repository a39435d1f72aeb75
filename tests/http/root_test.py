"""The root of erasure as operators see it, and its replacement without an erasure: sessions go on, the old root is gone, and a server that is
killed anywhere on the way ends what was asked for."""
import json
import os
import subprocess
import unittest

import rig

STEPS = ("erase/stage-create", "erase/staged", "store/erase-rekey/committed", "erase/destroy", "roe/file/destroy-write",
         "erase/destroyed", "erase/purged", "erase/verified", "operation/piece")


class Root(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = rig.Server()
        cls.addClassCleanup(cls.server.stop)
        cls.tenant = cls.server.tenant("root")
        cls.admin = cls.server.key(cls.tenant, "tenant_admin")
        answer = cls.server.patient("POST", "/v1/sessions", cls.admin,
                                    {"model": {"id": "m", "revision": "r"}, "external_id": "chat-1"})
        cls.session = answer.json()["id"]

    def root(self):
        answer = self.server.call("GET", "/v1/root", self.server.operator)
        self.assertEqual(answer.status, 200, answer)
        return answer.json()

    def rotate(self, wait=60, **headers):
        return self.server.call("POST", "/v1/root:rotate", self.server.operator, {}, {"Prefer": f"wait={wait}", **headers})

    def check_opens(self):
        """The client's id is sealed under the session's key, so the tree leads there."""
        answer = self.server.patient("GET", f"/v1/sessions/{self.session}", self.admin)
        self.assertEqual(answer.json()["external_id"], "chat-1", answer)

    def test_it_is_shown_to_those_who_look_after_it_and_to_nobody_else(self):
        root = self.root()
        self.assertEqual((root["state"], root["provider"]["name"], root["provider"]["assurance"]), ("ok", "file", "E2"))
        self.assertEqual(root["provider"]["path"], os.path.join(self.server.state, "root"))
        self.assertEqual(root["root_id"], root["provider"]["active_root"])
        self.assertIn("L8", root["limits"])
        for role in ("auditor", "security_officer", "viewer"):
            made = self.server.call("POST", "/v1/api-keys", self.server.operator, {"name": role, "roles": [role]}).json()
            self.assertEqual(self.server.call("GET", "/v1/root", made["secret"]).status, 200)
            self.assertEqual(self.server.call("POST", "/v1/root:rotate", made["secret"], {}).status, 403)
        self.assertEqual(self.server.call("GET", "/v1/root", self.admin).status, 403)

    def test_a_rotation_replaces_it_and_sessions_go_on(self):
        before = self.root()
        answer = self.rotate(**{"Idempotency-Key": "once"})
        self.assertEqual((answer.status, answer.json()["state"]), (200, "succeeded"), answer)
        after = self.root()
        self.assertEqual(answer.json()["response"], {**answer.json()["response"], "old_root": before["root_id"],
                                                     "new_root": after["root_id"], "provider": "file"})
        self.assertNotEqual(before["root_id"], after["root_id"])
        self.assertEqual(after["replaced"], before["replaced"] + 1)
        self.assertEqual(after["root_id"], after["provider"]["active_root"])
        self.assertNotIn("staged_root", after["provider"])
        self.check_opens()
        again = self.rotate(**{"Idempotency-Key": "once"})
        self.assertEqual(again.json()["id"], answer.json()["id"])
        self.assertEqual(self.root()["root_id"], after["root_id"])

    def test_killed_anywhere_it_ends_after_the_start(self):
        for step in STEPS:
            with self.subTest(step=step):
                before = self.root()
                self.assertEqual(self.server.stop(), 0)
                self.server.start(KVRUN_FAULT=f"{step}=kill@1")
                try:
                    self.rotate(30)
                except OSError:
                    pass  # the server ended under the request
                self.assertEqual(self.server.process.wait(60), -9)
                self.server.stop()
                self.server.start()
                answer = self.server.patient("GET", "/v1/operations?kind=root.rotate&limit=1", self.server.operator)
                path = f"/v1/operations/{answer.json()['data'][0]['id']}"
                rig.wait_for("the end", lambda: self.server.call("GET", path, self.server.operator).json()["done"])
                ended = self.server.call("GET", path, self.server.operator).json()
                self.assertEqual((ended["state"], ended["response"]["old_root"]), ("succeeded", before["root_id"]), ended)
                after = self.root()
                self.assertEqual((after["root_id"], after["replaced"]), (ended["response"]["new_root"], before["replaced"] + 1))
                self.assertEqual(after["root_id"], after["provider"]["active_root"])
                self.assertNotIn("staged_root", after["provider"])
                self.check_opens()

    def test_the_command_line_shows_and_rotates_it(self):
        def kvrun(*words):
            return subprocess.run([rig.options.kvrun, *words, "--addr", f"127.0.0.1:{self.server.port}"], text=True,
                                  env={**os.environ, "KVRUN_TOKEN": self.server.operator}, capture_output=True, timeout=120,
                                  check=False)

        shown = kvrun("root", "status", "--json")
        self.assertEqual((shown.returncode, json.loads(shown.stdout)["root_id"]), (0, self.root()["root_id"]), shown)
        self.assertIn("E2", kvrun("root", "status", "-o", "table").stdout)
        done = kvrun("root", "rotate", "--wait", "--json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["response"]["new_root"]), (0, self.root()["root_id"]), done)


if __name__ == "__main__":
    rig.main(__name__)
