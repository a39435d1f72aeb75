"""The root of erasure moves from a file to a key service, to a token, and back: the old provider destroys its root, no root is copied, sessions
go on, certificates name who destroyed; and a server that is killed anywhere on the way ends with exactly one root."""
import base64
import glob
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import rig

PIN = "4711-pin"
STEPS = ("erase/stage-create", "erase/staged", "store/erase-rekey/committed", "erase/destroy", "erase/moved", "erase/destroyed",
         "erase/purged", "operation/piece")

# The token's own, there and back.
TO_TOKEN = tuple(f"roe/pkcs11/{step}" for step in ("create", "created", "activate", "activated"))
FROM_TOKEN = ("roe/pkcs11/destroy", "roe/pkcs11/destroyed", "erase/moved", "erase/destroyed")
SAMPLE = 3


def some(steps):
    """All with KV_LONG=1, else a sample that the seed tells."""
    seed = int(os.environ.get("KV_SEED", random.SystemRandom().getrandbits(32)))
    print(f"seed {seed}", flush=True)
    steps = list(steps)
    return steps if os.environ.get("KV_LONG") == "1" else random.Random(seed).sample(steps, SAMPLE)


def softhsm():
    for pattern in ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/*/softhsm/libsofthsm2.so", "/usr/lib64/*/libsofthsm2.so"):
        for path in glob.glob(pattern):
            return path if shutil.which("softhsm2-util") else None
    return None


class Migration(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvh.")
        self.addCleanup(shutil.rmtree, self.folder, True)
        script = pathlib.Path(rig.options.source, "tests", "lib", "transit_double.py")
        self.double = subprocess.Popen([sys.executable, "-B", str(script), "s.token"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end_double)
        self.url = "http://127.0.0.1:" + self.double.stdout.readline().split()[1]
        token = pathlib.Path(self.folder, "token")
        token.write_text("s.token\n")
        token.chmod(0o600)
        self.arguments = [f"--root.transit.address={self.url}", f"--root.transit.token_file={token}"]
        self.environment = {}
        if softhsm():
            self.make_token()
        self.server = rig.Server(*self.arguments, environment=self.environment)
        self.addCleanup(self.server.stop)
        self.tenant = self.server.tenant("moves")
        self.admin = self.server.key(self.tenant, "tenant_admin")
        self.session = self.server.patient("POST", "/v1/sessions", self.admin, {
            "model": {"id": "m", "revision": "r"}, "external_id": "chat-1"}).json()["id"]

    def end_double(self):
        self.double.stdin.close()
        self.double.wait()
        self.double.stdout.close()

    def make_token(self):
        self.tokens = os.path.join(self.folder, "tokens")
        os.mkdir(self.tokens)
        conf = pathlib.Path(self.folder, "softhsm2.conf")
        conf.write_text(f"directories.tokendir = {self.tokens}\nobjectstore.backend = file\nlog.level = ERROR\n")
        self.environment = {"SOFTHSM2_CONF": str(conf)}
        subprocess.run(["softhsm2-util", "--init-token", "--free", "--label", "kvrun-test", "--pin", PIN, "--so-pin", "so-pin"],
                       env={**os.environ, **self.environment}, check=True, capture_output=True)
        pin = pathlib.Path(self.folder, "pin")
        pin.write_text(PIN + "\n")
        pin.chmod(0o600)
        self.arguments += [f"--root.pkcs11.module={softhsm()}", "--root.pkcs11.token=kvrun-test", f"--root.pkcs11.pin_file={pin}"]

    def held(self, provider):
        """How many roots the provider holds, asked without the server."""
        if provider == "transit":
            request = urllib.request.Request(self.url + "/double/", b"{}", {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return len(json.load(answer)["keys"])
        if provider == "pkcs11":
            return len([f for f in glob.glob(self.tokens + "/*/*.object") if not f.endswith("token.object")])
        slots = pathlib.Path(self.server.state, "root").read_bytes()[8192:]  # after its header
        return sum(any(slots[at:at + 4096]) for at in range(0, len(slots), 4096))

    def root(self):
        return self.server.patient("GET", "/v1/root", self.server.operator).json()

    def migrate(self, to, wait=60):
        return self.server.call("POST", "/v1/root:migrate", self.server.operator, {"to": to}, {"Prefer": f"wait={wait}"})

    def check_opens(self):
        answer = self.server.patient("GET", f"/v1/sessions/{self.session}", self.admin)
        self.assertEqual(answer.json()["external_id"], "chat-1", answer)

    def check_at(self, provider, before):
        root = self.root()
        self.assertEqual((root["state"], root["provider"]["name"], root["database_provider"]), ("ok", provider, provider), root)
        self.assertEqual(root["root_id"], root["provider"]["active_root"])
        self.assertNotIn("staged_root", root["provider"])
        self.assertEqual((self.held(before), self.held(provider)), (0, 1))
        self.check_opens()

    def destroyed_by(self):
        session = self.server.session(self.admin)
        answer = self.server.call("POST", "/v1/erasures", self.admin, {"scope": {"session_id": session}}, {"Prefer": "wait=60"})
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)
        found = self.server.call("GET", f"/v1/certificates/{answer.json()['certificate_id']}", self.admin,
                                 headers={"Accept": "application/jose"})
        payload = found.body.split(b".")[1]
        return json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))["destroyed"]["provider"]

    def test_it_moves_from_each_to_the_next_and_back(self):
        there = "file"
        self.assertEqual(self.held("file"), 1, "control")
        for to in ("transit", "pkcs11", "file", "pkcs11", "transit", "file") if softhsm() else ("transit", "file"):
            old = self.root()["root_id"]
            answer = self.migrate(to)
            self.assertEqual((answer.status, answer.json()["state"]), (200, "succeeded"), answer)
            self.assertEqual((answer.json()["response"]["provider"], answer.json()["response"]["old_root"]), (there, old))
            self.check_at(to, there)
            self.assertEqual(self.destroyed_by(), to)
            self.assertEqual(self.server.stop(), 0)
            self.server.start()  # with root.provider as it was: kroot says where
            self.check_at(to, there)
            there = to

    def test_what_is_no_place_for_it_is_refused(self):
        for to, status, code in (("file", 409, "invalid_state"), ("memory", 400, "invalid_request"), ("paper", 400, "invalid_request")):
            answer = self.migrate(to)
            self.assertEqual((answer.status, answer.code), (status, code), answer)
        self.double.kill()
        answer = self.migrate("transit")
        self.assertEqual((answer.status, answer.pointer), (400, "/to"), answer)
        self.check_opens()
        self.assertEqual((self.root()["provider"]["name"], self.held("file")), ("file", 1))

    def killed(self, step, there, to):
        with self.subTest(step=step, to=to):
            self.assertEqual(self.server.stop(), 0)
            self.server.start(KVRUN_FAULT=f"{step}=kill@1")
            try:
                self.migrate(to, 30)
            except OSError:
                pass  # the server ended under the request
            self.assertEqual(self.server.process.wait(60), -9)
            self.server.stop()
            self.server.start()
            rig.wait_for("the end", lambda: self.last_operation()["done"])
            ended = self.last_operation()
            self.assertEqual(ended["state"], "succeeded", ended)
            self.check_at(to, there)
        return to

    def last_operation(self):
        answer = self.server.patient("GET", "/v1/operations?kind=root.migrate&limit=1", self.server.operator)
        return answer.json()["data"][0]

    def called_off(self, to, step, killed):
        """Cancelled while its fresh root is staged at the new provider, which is asked itself what is left there."""
        gate = os.path.join(self.folder, "gate")
        self.assertEqual(self.server.stop(), 0)
        self.server.start(KVRUN_FAULT=f"{step}=hold:{gate}@1once")
        self.migrate(to, 0)
        rig.wait_for("a staged root", lambda: os.path.exists(gate))
        self.assertEqual((self.held("file"), self.held(to)), (1, 1), "control: it is there")
        operation = self.last_operation()["id"]
        answer = self.server.call("POST", f"/v1/operations/{operation}:cancel", self.server.operator)
        self.assertEqual(answer.status, 200, answer)
        if killed:
            self.server.process.kill()
            self.server.process.wait(60)
            self.server.stop()
        else:
            rig.wait_for("the cancel to be seen", lambda: self.last_operation()["metadata"]["phase"] == "calling off")
        os.unlink(gate)
        if killed:
            self.server.start()
        rig.wait_for("the end", lambda: self.last_operation()["done"])
        self.assertEqual(self.last_operation()["state"], "canceled")
        self.assertEqual((self.held("file"), self.held(to)), (1, 0))
        self.assertEqual(self.root()["provider"]["name"], "file")
        self.check_opens()
        self.assertEqual(self.destroyed_by(), "file")

    def test_cancelled_it_leaves_no_key_behind(self):
        for to in ("transit", "pkcs11") if softhsm() else ("transit",):
            for step, killed in (("erase/staged", False), ("erase/staged", True), (f"roe/{to}/created", True)):
                with self.subTest(to=to, step=step, killed=killed):
                    self.called_off(to, step, killed)

    def test_killed_anywhere_it_ends_with_exactly_one_root(self):
        there = "file"
        for step in STEPS:
            there = self.killed(step, there, "transit" if there == "file" else "file")

    def test_killed_anywhere_on_the_way_to_a_token_and_from_there(self):
        if not softhsm():
            self.skipTest("SoftHSM is not installed")
        there = "file"
        for to_token, from_token in some(zip(STEPS + TO_TOKEN, STEPS + FROM_TOKEN)):
            there = self.killed(from_token, self.killed(to_token, there, "pkcs11"), "transit" if there == "file" else "file")

    def test_in_between_both_have_one_which_the_count_sees(self):
        """The control of every count here: between the two, it is not one."""
        gate = os.path.join(self.folder, "gate")
        self.assertEqual(self.server.stop(), 0)
        self.server.start(KVRUN_FAULT=f"erase/moved=hold:{gate}@1once")
        to = "pkcs11" if softhsm() else "transit"
        self.migrate(to, 0)
        rig.wait_for("the fresh one to be active", lambda: os.path.exists(gate))
        self.assertEqual((self.held("file"), self.held(to)), (1, 1))
        os.unlink(gate)
        rig.wait_for("the end", lambda: self.last_operation()["done"])
        self.check_at(to, "file")


if __name__ == "__main__":
    rig.main(__name__)
