"""Roots of erasure outside of a file: on a PKCS #11 token and in a key service. Each server erases with a certificate, finds its
root again after a restart, and waits for it while it is away."""
import base64
import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import rig

PIN = "4711-pin"


class Base(unittest.TestCase):
    """Nothing runs here; the two below say where the root is."""

    limits = ["L1", "L10", "L2", "L3", "L4", "L7", "L8", "L9"]

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="kvh.")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.arrange()
        cls.server = rig.Server(*cls.arguments, environment=cls.environment)
        cls.addClassCleanup(cls.server.stop)
        cls.tenant = cls.server.tenant("roots")
        cls.admin = cls.server.key(cls.tenant, "tenant_admin")

    def session(self):
        answer = self.server.patient("POST", "/v1/sessions", self.admin, {"model": {"id": "m", "revision": "r"}})
        self.assertEqual(answer.status, 201, answer)
        return answer.json()["id"]

    def erase(self, session, wait=60):
        return self.server.call("POST", "/v1/erasures", self.admin, {"scope": {"session_id": session}},
                                {"Prefer": f"wait={wait}"} if wait else {})

    def certificate(self, erasure):
        found = self.server.call("GET", f"/v1/erasures/{erasure}", self.admin).json()["certificate_id"]
        answer = self.server.call("GET", f"/v1/certificates/{found}", self.admin, headers={"Accept": "application/jose"})
        self.assertEqual(answer.status, 200, answer)
        payload = answer.body.split(b".")[1]
        return json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))

    def erased(self):
        session = self.session()
        answer = self.erase(session)
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)
        return self.certificate(answer.json()["id"])


class Suite:
    def test_an_erasure_replaces_the_root_and_says_where_it_was(self):
        before = self.roots()
        self.assertEqual(len(before), 1, before)
        claims = self.erased()
        after = self.roots()
        self.assertEqual(len(after), 1, after)
        self.assertNotEqual(before, after)
        self.assertEqual((claims["assurance"], claims["destroyed"]["provider"]), ("E2", self.provider))
        self.assertEqual(claims["destroyed"]["detail"], self.detail())
        self.assertEqual(sorted(limit["code"] for limit in claims["limits"]), self.limits)

    def test_a_rotation_replaces_the_root_and_erases_nothing(self):
        session = self.session()
        before = self.roots()
        answer = self.server.call("POST", "/v1/root:rotate", self.server.operator, {}, {"Prefer": "wait=60"})
        self.assertEqual((answer.status, answer.json()["state"]), (200, "succeeded"), answer)
        self.assertEqual(answer.json()["response"]["provider"], self.provider)
        after = self.roots()
        self.assertEqual(len(after), 1, after)
        self.assertNotEqual(before, after)
        shown = self.server.call("GET", "/v1/root", self.server.operator).json()
        self.assertEqual((shown["state"], shown["provider"]["detail"]), ("ok", self.detail()))
        self.assertEqual(self.server.call("GET", f"/v1/sessions/{session}", self.admin).status, 200)

    def test_the_root_is_there_after_a_restart(self):
        first = self.roots()
        self.server.process.send_signal(signal.SIGKILL)
        self.server.process.wait()
        self.server.reader.join()
        self.server.start()
        self.assertEqual(self.roots(), first)
        self.erased()

    def test_an_erasure_waits_for_a_root_that_is_away_and_claims_nothing(self):
        session = self.session()
        before = self.roots()
        self.take_away()
        try:
            answer = self.erase(session, wait=3)
            self.assertEqual(answer.status, 202, answer)
            self.assertNotIn(answer.json()["state"], ("destroyed", "purged", "verified", "certified"))
            rig.wait_for("the log to say why", lambda: any(self.trouble in line for line in list(self.server.log)), 60)
        finally:
            self.bring_back()
        erasure = answer.json()["id"]

        def state():
            return self.server.call("GET", f"/v1/erasures/{erasure}", self.admin).json()["state"]

        rig.wait_for("the certificate", lambda: state() == "certified", 90)
        self.assertNotEqual(self.roots(), before)


def softhsm():
    for pattern in ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/*/softhsm/libsofthsm2.so", "/usr/lib64/*/libsofthsm2.so"):
        for path in glob.glob(pattern):
            return path
    return None


@unittest.skipUnless(softhsm() and shutil.which("softhsm2-util"), "SoftHSM is not installed (Debian: softhsm2)")
class Token(Suite, Base):
    provider = "pkcs11"
    trouble = "refused the PIN"

    @classmethod
    def arrange(cls):
        tokens = os.path.join(cls.folder, "tokens")
        os.mkdir(tokens)
        conf = pathlib.Path(cls.folder, "softhsm2.conf")
        conf.write_text(f"directories.tokendir = {tokens}\nobjectstore.backend = file\nlog.level = ERROR\n")
        cls.environment = {"SOFTHSM2_CONF": str(conf)}
        subprocess.run(["softhsm2-util", "--init-token", "--free", "--label", "kvrun-test", "--pin", PIN, "--so-pin", "so-pin"],
                       env={**os.environ, **cls.environment}, check=True, capture_output=True)
        cls.pin = pathlib.Path(cls.folder, "pin")
        cls.write_pin(PIN)
        cls.tokens = tokens
        cls.arguments = ["--root.provider=pkcs11", f"--root.pkcs11.module={softhsm()}", "--root.pkcs11.token=kvrun-test",
                         f"--root.pkcs11.pin_file={cls.pin}"]

    @classmethod
    def write_pin(cls, pin):
        cls.pin.write_text(pin + "\n")
        cls.pin.chmod(0o600)

    def roots(self):
        """One file an object, beside the token's own."""
        return [f for f in sorted(glob.glob(self.tokens + "/*/*.object")) if not f.endswith("token.object")]

    def detail(self):
        return f"token: SoftHSM project, SoftHSM v2, serial {self.serial()}"

    def serial(self):
        shown = subprocess.run(["softhsm2-util", "--show-slots"], env={**os.environ, **self.environment}, check=True,
                               capture_output=True, text=True).stdout
        token = shown.split("kvrun-test")[0]
        return token.split("Serial number:")[-1].split("\n")[0].strip()

    def take_away(self):
        """The PIN is wrong: the connection that confirms a destruction finds out."""
        self.write_pin("0000-pin")

    def bring_back(self):
        self.write_pin(PIN)


class KeyService(Suite, Base):
    provider = "transit"
    trouble = "sealed or in maintenance"

    @classmethod
    def arrange(cls):
        script = pathlib.Path(rig.options.source, "tests", "lib", "transit_double.py")
        cls.double = subprocess.Popen([sys.executable, "-B", str(script), "s.token"], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.end)
        cls.url = "http://127.0.0.1:" + cls.double.stdout.readline().split()[1]
        token = pathlib.Path(cls.folder, "token")
        token.write_text("s.token\n")
        token.chmod(0o600)
        cls.environment = {}
        cls.arguments = ["--root.provider=transit", f"--root.transit.address={cls.url}", f"--root.transit.token_file={token}",
                         "--root.transit.backup_window=30d"]

    @classmethod
    def end(cls):
        cls.double.stdin.close()
        cls.double.wait()
        cls.double.stdout.close()

    def control(self, **what):
        request = urllib.request.Request(self.url + "/double/", json.dumps(what).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def roots(self):
        return sorted(self.control()["keys"])

    def detail(self):
        return "transit key service; its backups are kept for up to 2592000 s"

    def take_away(self):
        self.control(sealed=True)

    def bring_back(self):
        self.control(sealed=False)


del Base

if __name__ == "__main__":
    rig.main(__name__)
