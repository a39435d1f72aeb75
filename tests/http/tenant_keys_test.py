"""Versions of a tenant's key over REST: states, rotation as an operation, who may; and that no answer has a key in it."""
import base64
import json
import os
import pathlib
import re
import shutil
import subprocess

import rig

MODEL = {"model": {"id": "m", "revision": "r"}}
HEX32 = re.compile("^[0-9a-f]{32}$")


class Keys(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.other = cls.server.tenant("other")
        cls.stranger = cls.server.key(cls.other, "tenant_admin")

    def setUp(self):
        self.tenant = self.server.tenant("t" + os.urandom(6).hex())
        self.admin, self.officer = (self.server.key(self.tenant, role) for role in ("tenant_admin", "security_officer"))
        self.where = f"/v1/tenants/{self.tenant}/encryption-keys"

    def call(self, method, path, token=None, body=None, **headers):
        return self.server.call(method, path, token or self.admin, body,
                                {name.replace("_", "-"): value for name, value in headers.items()})

    def session(self, **members):
        answer = self.call("POST", "/v1/sessions", None, {**MODEL, **members})
        self.assertEqual(answer.status, 201, answer)
        return answer.json()

    def versions(self):
        answer = self.call("GET", self.where)
        self.assertEqual(answer.status, 200, answer)
        return {version["version"]: version for version in answer.json()["data"]}

    def rotate(self, body=None, token=None):
        answer = self.call("POST", f"{self.where}:rotate", token, body, Prefer="wait=60")
        self.assertEqual((answer.status, answer.json()["state"]), (200, "succeeded"), answer)
        return answer.json()

    def key(self, session):
        return self.call("GET", f"/v1/sessions/{session}?expand=erasure").json()["key"]

    def test_a_version_goes_from_unused_to_destroyed(self):
        first = self.versions()
        self.assertEqual((len(first), first[1]["state"], first[1]["sessions"]), (1, "pre_activation", 0))
        self.assertNotIn("fingerprint", first[1])
        made = self.session()
        first = self.versions()[1]
        self.assertEqual((first["state"], first["sessions"]), ("active", 1))
        self.assertRegex(first["fingerprint"], HEX32)
        operation = self.rotate()
        self.assertEqual(operation["kind"], "key.rotate")
        versions = self.versions()
        self.assertEqual(operation["response"], {"tenant_id": self.tenant, "version": 2, "fingerprint": versions[2]["fingerprint"]})
        self.assertEqual((versions[1]["state"], versions[1]["ended_by"]), ("destroyed", operation["id"]))
        self.assertEqual((versions[2]["state"], versions[2]["made_by"]), ("active", operation["id"]))
        self.assertEqual(versions[1]["fingerprint"], first["fingerprint"])
        self.assertNotEqual(versions[2]["fingerprint"], first["fingerprint"])
        self.assertLess(versions[1]["created_at"], versions[1]["destroyed_at"])
        self.assertEqual([versions[v]["sessions"] for v in (1, 2)], [1, 0])
        self.assertEqual(self.key(made["id"]), made["key"], "a session's own key stays")

    def test_every_state_of_a_sessions_key(self):
        sessions = [self.session()["id"] for _ in range(2)]
        self.assertEqual((self.key(sessions[0])["state"], self.key(sessions[0])["version"]), ("active", 1))
        self.assertRegex(self.key(sessions[0])["fingerprint"], HEX32)
        self.assertNotEqual(self.key(sessions[0])["fingerprint"], self.key(sessions[1])["fingerprint"])
        for change, state in (("suspend", "suspended"), ("resume", "active")):
            self.server.call("POST", f"/v1/tenants/{self.tenant}:{change}", self.server.operator)
            rig.wait_for(state, lambda: self.key(sessions[0])["state"] == state, 20)
            self.assertEqual(self.versions()[1]["state"], state)
        self.rotate({"compromised": True})
        rig.wait_for("compromised", lambda: self.key(sessions[0])["state"] == "compromised", 20)
        self.assertIn("compromised_at", self.versions()[1])
        later = self.session()
        self.assertEqual((later["key"]["state"], later["key"]["version"]), ("active", 2))
        erasure = self.call("POST", "/v1/erasures", None, {"scope": {"session_id": sessions[0]}}, Prefer="wait=60")
        self.assertEqual(erasure.json()["state"], "certified")
        self.assertEqual(self.key(sessions[0])["state"], "destroyed")
        self.assertEqual(self.key(sessions[1])["state"], "compromised", "control")
        self.assertEqual(self.versions()[1]["sessions"], 1)

    def test_who_may(self):
        self.session()
        self.rotate(token=self.officer)
        platform = self.server.call("POST", "/v1/api-keys", self.server.operator,
                                    {"name": "officer", "roles": ["security_officer"]}).json()["secret"]
        self.assertEqual(self.call("GET", self.where, platform).status, 200)
        started = self.call("POST", f"{self.where}:rotate", platform, Prefer="wait=60")
        self.assertEqual(started.json()["state"], "succeeded")
        self.assertEqual(self.call("GET", started.headers["location"], platform).status, 200)
        self.assertEqual(self.call("GET", started.headers["location"]).status, 404, "the platform's")
        for token, status in ((self.stranger, 404), (self.server.operator, 403), (self.server.key(self.tenant, "engine"), 403)):
            self.assertEqual(self.call("GET", self.where, token).status, status)
            self.assertEqual(self.call("POST", f"{self.where}:rotate", token).status, status)
        self.assertEqual(len(self.versions()), 3)

    def test_what_cannot_be_rotated(self):
        answer = self.call("POST", f"{self.where}:rotate")
        self.assertEqual((answer.status, answer.code), (409, "invalid_state"), "no session was ever made")
        for body, pointer in (({"compromised": "yes"}, "/compromised"), ({"key": "x"}, "/key")):
            answer = self.call("POST", f"{self.where}:rotate", None, body)
            self.assertEqual((answer.status, answer.pointer), (400, pointer))
        self.session()
        key = {"Idempotency_Key": "once"}
        first = self.call("POST", f"{self.where}:rotate", Prefer="wait=60", **key)
        again = self.call("POST", f"{self.where}:rotate", **key)
        self.assertEqual(first.json()["id"], again.json()["id"])
        self.assertEqual(again.headers["idempotency-replayed"], "true")
        self.assertEqual(len(self.versions()), 2)

    def test_versions_come_in_pages(self):
        self.session()
        for _ in range(2):
            self.rotate()
        seen, path = [], f"{self.where}?limit=2&order=asc"
        while path:
            page = self.call("GET", path).json()
            seen += [version["version"] for version in page["data"]]
            path = page["next_cursor"] and f"{self.where}?limit=2&order=asc&cursor={page['next_cursor']}"
        self.assertEqual(seen, [1, 2, 3])

    def test_the_log_says_who_and_when(self):
        self.session()
        operation = self.rotate({"compromised": True})
        self.rotate()

        def entries():
            return {entry["op"]: entry for entry in self.call("GET", "/v1/audit/entries").json()["data"]}
        wanted = {"tenant_key.compromised", "tenant_key.rotate", "tenant_key.destroy"}
        rig.wait_for("the entries", lambda: wanted <= set(entries()))
        self.assertEqual(json.loads(entries()["tenant_key.compromised"]["entry"])["subject"], operation["id"])

    def test_the_command_line(self):
        self.session()
        program = [rig.options.kvrun, "tenants"]
        environment = {**os.environ, "KVRUN_ADDR": f"127.0.0.1:{self.server.port}", "KVRUN_TOKEN": self.admin}

        def run(*words):
            return subprocess.run([*program, *words], env=environment, capture_output=True, text=True, timeout=90)
        rotated = run("rotate-key", self.tenant, "--compromised", "--wait", "-o", "json")
        self.assertEqual((rotated.returncode, json.loads(rotated.stdout)["state"]), (0, "succeeded"), rotated.stderr)
        listed = run("keys", self.tenant)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertEqual([line.split()[:2] for line in listed.stdout.splitlines()[1:]], [["2", "active"], ["1", "destroyed"]])
        self.assertEqual(run("keys", self.other).returncode, 3)


class Told(rig.Suite):
    """A build with fault points tells its keys to a file: none of them is in an answer, in any of the usual spellings."""

    @classmethod
    def setUpClass(cls):
        cls.place = rig.tempfile.mkdtemp(prefix="kvtold.")
        cls.environment = {"KVRUN_TELL_KEYS": os.path.join(cls.place, "keys")}
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        try:
            super().tearDownClass()
        finally:
            shutil.rmtree(cls.place, ignore_errors=True)

    def test_no_answer_has_a_key_in_it(self):
        tenant = self.server.tenant("told")
        admin = self.server.key(tenant, "tenant_admin")
        answers = []

        def call(method, path, body=None, **headers):
            answer = self.server.call(method, path, admin, body, headers)
            answers.append(answer)
            return answer
        session = call("POST", "/v1/sessions", {**MODEL, "external_id": "chat-1"}).json()["id"]
        where = f"/v1/tenants/{tenant}/encryption-keys"
        for step in range(2):
            call("GET", f"/v1/sessions/{session}?expand=usage,erasure")
            call("GET", "/v1/sessions?external_id=chat-1")
            call("POST", f"/v1/sessions/{session}:explain", {})
            call("GET", where)
            if step == 0:
                end = call("POST", f"{where}:rotate", {"compromised": True}, Prefer="wait=60")
                self.assertEqual(end.json()["state"], "succeeded")
                call("GET", end.headers["location"])
        call("POST", "/v1/erasures", {"scope": {"session_id": session}}, Prefer="wait=60")
        call("GET", f"/v1/sessions/{session}?expand=erasure")
        told = pathlib.Path(self.environment["KVRUN_TELL_KEYS"])
        if not told.exists():
            self.skipTest("this build tells no keys: it has no fault points")
        keys = {bytes.fromhex(line.split(" ")[2]) for line in told.read_text().splitlines()}
        kinds = {line.split(" ")[0] for line in told.read_text().splitlines()}
        self.assertLessEqual({"slot", "scope", "meta", "node", "root"}, kinds)
        text = b"\n".join(answer.body for answer in answers)
        for key in keys:
            for form in self.forms(key):
                self.assertNotIn(form, text)
        fingerprint = bytes.fromhex(answers[1].json()["key"]["fingerprint"])
        self.assertTrue(any(form in text for form in self.forms(fingerprint)), "control: what is there is found")

    @staticmethod
    def forms(key):
        """Any 8 bytes of it, raw, in hexadecimal; and all of it in base64."""
        for at in range(0, len(key) - 7, 8):
            yield key[at:at + 8]
            yield key[at:at + 8].hex().encode()
        for skip in range(3):
            yield base64.b64encode(key[skip:])[:-4].rstrip(b"=")
            yield base64.urlsafe_b64encode(key[skip:])[:-4].rstrip(b"=")


if __name__ == "__main__":
    rig.main(__name__)
