"""From the release before: its database with what was in it, its state folder, its configuration file. What is in
tests/upgrade was made by that release's own server."""
import base64
import json
import pathlib
import subprocess
import tempfile
import unittest
import zlib

import postgres
import rig
from engine import Engine, answered


def fixture(name):
    return pathlib.Path(rig.options.source, "tests/upgrade", name)


class Upgrade(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.before = json.loads(fixture("0001.json").read_text())
        cls.postgres = postgres.Postgres()
        cls.postgres.file(fixture("0001.sql"))
        # As if it had been yesterday: a fixture grows old, and what expires is another test's subject.
        cls.postgres.sql("UPDATE kvrun.api_key SET created_at = now() - interval '1 day',"
                         " expires_at = now() + interval '89 days';"
                         "UPDATE kvrun.session SET created_at = now() - interval '1 day'")

    @classmethod
    def tearDownClass(cls):
        cls.postgres.remove()

    def put_state(self, state):
        pathlib.Path(state).mkdir(mode=0o711)
        for name, content in self.before["state"].items():
            path = pathlib.Path(state, name)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(zlib.decompress(base64.b64decode(content)))
            path.chmod(0o600)

    def run_kvrun(self, *words):
        return subprocess.run([rig.options.kvrun, *words], capture_output=True, text=True, timeout=60, check=False)

    def version(self):
        return self.postgres.sql("SELECT max(version) FROM kvrun.schema_version")

    def test_everything_is_there_and_works(self):
        self.assertEqual(self.version(), "1")
        self.refused_until_migrated()
        server = rig.Server(f"--db.url={self.postgres.url}", "--db.migrate=check", prepare=self.put_state)
        self.addCleanup(server.remove)
        rig.wait_for("readiness", lambda: server.call("GET", "/readyz").status == 200)
        self.what_was_there(server)
        self.what_goes_on(server)
        self.assertEqual(server.stop(), 0)

    def refused_until_migrated(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_kvrun("serve", f"--state.dir={folder}/s", f"--db.url={self.postgres.url}",
                                  "--http.listen=127.0.0.1:0", "--http.admin_listen=127.0.0.1:0",
                                  "--tiers.dram.bytes=64MiB")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("run kvrun db migrate", done.stderr)
        self.assertEqual(self.version(), "1")
        done = self.run_kvrun("db", "migrate", f"--db.url={self.postgres.url}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreaterEqual(int(self.version()), 2)

    def what_was_there(self, server):
        was, self.operator = self.before, server.operator
        self.assertEqual(server.operator, was["operator"])
        self.assertEqual(server.call("GET", f"/v1/tenants/{was['tenant']}", server.operator).json()["name"], "before")
        self.assertEqual(server.call("GET", f"/v1/tenants/{was['other']}", server.operator).json()["name"], "beside")
        for session in ("kept", "late"):
            answer = server.call("GET", f"/v1/sessions/{was[session]}", was["token"])
            self.assertEqual((answer.status, answer.json().get("state")), (200, "active"), answer)
        gone = server.call("GET", f"/v1/sessions/{was['erased']}", was["token"])
        self.assertIn(gone.status, (200, 410))
        if gone.status == 200:
            self.assertNotEqual(gone.json()["state"], "active")
        erasure = server.call("GET", f"/v1/erasures/{was['erasure']}", was["auditor"])
        self.assertEqual((erasure.status, erasure.json()["state"]), (200, "certified"))
        certificate = server.call("GET", f"/v1/erasures/{was['erasure']}/certificate", was["auditor"],
                                  headers={"Accept": "text/plain"})
        self.assertEqual(certificate.body.decode().split("\n\n")[0], was["certificate"].split("\n\n")[0])
        self.assertEqual(server.call("GET", "/.well-known/kvrun/log.vkey").body.decode(), was["vkey"])

    def what_goes_on(self, server):
        was = self.before
        engine = Engine(server, was["token"]).open_pool()
        page = engine.fill(0, "after")
        stored = rig.wait_for("the block", lambda: answered(engine.offload(was["kept"], ["b"], [0])))
        self.assertEqual(stored.json()["results"], ["stored"])
        restored = engine.restore(was["kept"], ["b"], [1])
        self.assertEqual(restored.json()["results"], ["restored"])
        self.assertEqual(engine.page(1), page)
        self.assertEqual(engine.offload(was["erased"], ["b"], [0]).status, 410)
        erased = server.patient("POST", "/v1/erasures", was["token"], {"scope": {"session_id": was["late"]}},
                                {"Prefer": "wait=30"})
        self.assertEqual(erased.json()["state"], "certified", erased)
        self.assertTrue(server.session(was["token"]))
        self.assertTrue(server.key(was["other"], "engine"))

    def test_the_configuration_file_still_loads(self):
        done = self.run_kvrun("config", "show", "--config", str(fixture("0001.conf")))
        self.assertEqual(done.returncode, 0, done.stderr)
        keys = [line.split(" = ")[0].split(" =")[0] for line in fixture("0001.conf").read_text().split("\n")
                if line and not line.startswith("#")]
        shown = {line.split()[0]: line for line in done.stdout.split("\n") if line}
        for key in keys:
            self.assertIn("[file]", shown[key])


if __name__ == "__main__":
    rig.main(__name__)
