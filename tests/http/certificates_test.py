"""Certificates: their forms, the list, the archive and its README's commands, the check of good ones and bad ones."""
import base64
import io
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

import rig

E26 = "0" * 26


class Certificates(rig.Suite):
    server_options = ("--rate.public=1000000",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant, cls.other = cls.server.tenant("mine"), cls.server.tenant("theirs")
        cls.admin, cls.auditor = cls.server.key(cls.tenant, "tenant_admin"), cls.server.key(cls.tenant, "auditor")
        cls.theirs = cls.server.key(cls.other, "tenant_admin")
        cls.erasures = [cls.erased() for _ in range(3)]
        for erasure in cls.erasures:
            rig.wait_for("the statement that follows", lambda: cls.upgrade_of(erasure)["ciphertext"] == "gone")

    @classmethod
    def erased(cls):
        body = {"scope": {"session_id": cls.server.session(cls.admin)}, "basis": "gdpr_art17"}
        answer = cls.server.call("POST", "/v1/erasures", cls.admin, body, {"Prefer": "wait=30"})
        assert answer.status == 200, answer
        return answer.json()

    @classmethod
    def upgrade_of(cls, erasure, token=None):
        answer = cls.server.call("GET", f"/v1/erasures/{erasure['id']}/certificate", token or cls.admin,
                                 headers={"Accept": "application/json"})
        return answer.json()["upgrade"]

    def get(self, path, accept="*/*", token=None):
        return self.server.call("GET", path, token or self.admin, headers={"Accept": accept})

    def bundle(self, number=0):
        return self.get(f"/v1/erasures/{self.erasures[number]['id']}/certificate.txt").body

    def verify(self, body, kind="text/plain"):
        return self.server.call("POST", "/v1/certificates:verify", None, body, {"Content-Type": kind})

    # --- forms

    def test_by_erasure_and_by_id_the_same_in_every_form(self):
        erasure = self.erasures[0]
        for accept in ("text/plain", "application/jose", "application/json", "text/html"):
            one = self.get(f"/v1/erasures/{erasure['id']}/certificate", accept)
            two = self.get(f"/v1/certificates/{erasure['certificate_id']}", accept)
            self.assertEqual((one.status, one.body, one.headers["content-type"].split(";")[0]), (200, two.body, accept))
        self.assertEqual(self.bundle(), self.get(f"/v1/certificates/{erasure['certificate_id']}", "text/plain").body)
        self.assertEqual(self.get(f"/v1/certificates/{erasure['certificate_id']}", "image/png").status, 406)

    def test_the_json_view_holds_the_signed_payload_byte_for_byte(self):
        erasure = self.erasures[0]
        view = self.get(f"/v1/certificates/{erasure['certificate_id']}", "application/json")
        jws = self.get(f"/v1/certificates/{erasure['certificate_id']}", "application/jose").body
        payload = jws.split(b".")[1]
        self.assertIn(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)), view.body)
        links = view.json()["links"]
        for link in links.values():
            self.assertEqual(self.get(link).status, 200, link)

    def test_the_page_is_whole_and_escaped(self):
        page = self.get(f"/v1/certificates/{self.erasures[0]['certificate_id']}", "text/html").body.decode()
        self.assertIn(self.erasures[0]["session_id"], page)
        for code in re.findall(r'"code":"(L\d+)"', self.get(
                f"/v1/certificates/{self.erasures[0]['certificate_id']}", "application/json").body.decode()):
            self.assertIn(f"<th>{code}</th>", page)
        self.assertNotRegex(page, r"(?i)<script|<img|<link|\ssrc=|https?://")
        self.assertIn("&quot;claim&quot;", page, "the payload is shown as text")

    def test_there_is_none_yet_and_none_of_another(self):
        answer = self.get(f"/v1/certificates/crt_{E26}")
        self.assertEqual((answer.status, answer.code), (404, "not_found"))
        foreign = self.get(f"/v1/certificates/{self.erasures[0]['certificate_id']}", token=self.theirs)
        self.assertEqual((foreign.status, foreign.code), (404, "not_found"))

    # --- what follows one

    def test_the_statement_is_shown_with_its_certificate_and_is_checked_like_one(self):
        erasure, upgrade = self.erasures[0], self.upgrade_of(self.erasures[0])
        statement = self.get(f"/v1/erasures/{erasure['id']}/upgrade.txt")
        self.assertEqual((statement.status, statement.headers["content-type"]), (200, "text/plain; charset=utf-8"))
        self.assertEqual(self.get(f"/v1/certificates/{erasure['certificate_id']}/upgrade.txt", token=self.auditor).body,
                         statement.body)
        self.assertEqual(upgrade["statement"]["certificate"]["id"], erasure["certificate_id"])
        self.assertEqual((upgrade["id"], upgrade["statement"]["assurance"]), (upgrade["statement"]["jti"], "E2"))
        self.assertNotIn("missing", upgrade)
        report = self.verify(statement.body).json()
        self.assertTrue(report["valid"])
        self.assertEqual(report["statement"], upgrade["statement"])
        self.assertNotIn("certificate", report)
        self.assertFalse(self.verify(statement.body.replace(b"index ", b"index 1", 1)).json()["valid"])
        for path in (f"/v1/erasures/{erasure['id']}/upgrade.txt", f"/v1/certificates/{erasure['certificate_id']}/upgrade.txt"):
            foreign = self.get(path, token=self.theirs)
            self.assertEqual((foreign.status, foreign.code), (404, "not_found"))

    def test_while_somebody_may_have_ciphertext_there_is_none_and_the_view_says_who(self):
        away = "decode('0190000000007000800000000000000a', 'hex')"
        self.server.database("INSERT INTO kvrun.instance (id, incarnation, lease_until, lease_ctr, started_at)"
                             f" VALUES ({away}, 1, now(), 1, now())")
        erasure = self.erased()
        self.erasures.append(erasure)  # the lists have it, too
        rig.wait_for("the one that is away", lambda: len(self.upgrade_of(erasure).get("missing", [])) == 1)
        upgrade = self.upgrade_of(erasure)
        self.assertEqual((upgrade["ciphertext"], upgrade["missing"][0]["why"]), ("pending", "waiting"))
        answer = self.get(f"/v1/erasures/{erasure['id']}/upgrade.txt")
        self.assertEqual((answer.status, answer.code), (404, "not_yet"))
        self.server.database(f"UPDATE kvrun.instance SET ended_at = now(), folder_known = true WHERE id = {away}")
        rig.wait_for("the statement", lambda: self.upgrade_of(erasure)["ciphertext"] == "gone")

    # --- many

    def test_the_list_has_pages_and_times(self):
        page = self.get("/v1/certificates?limit=2", token=self.auditor).json()
        rest = self.get(f"/v1/certificates?limit=2&cursor={page['next_cursor']}", token=self.auditor).json()
        self.assertEqual([c["erasure_id"] for c in page["data"] + rest["data"]], [e["id"] for e in self.erasures[::-1]])
        middle = page["data"][1]["issued_at"]
        self.assertEqual(len(self.get(f"/v1/certificates?from={middle}").json()["data"]), 2)
        self.assertEqual(len(self.get(f"/v1/certificates?to={middle}").json()["data"]), len(self.erasures) - 2)
        self.assertEqual(self.get("/v1/certificates", token=self.theirs).json()["data"], [])
        self.assertEqual(self.get("/v1/certificates?from=yesterday").code, "invalid_request")

    def test_the_archive_is_checked_by_the_commands_of_its_readme(self):
        answer = self.get("/v1/certificates:export", token=self.auditor)
        self.assertEqual((answer.status, answer.headers["content-type"]), (200, "application/x-tar"))
        folder = pathlib.Path(self.server.folder, "archive")
        folder.mkdir()
        with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
            names = archive.getnames()
            archive.extractall(folder)
        self.assertEqual(sorted(n for n in names if n.startswith("certificates/")),
                         sorted(f"certificates/{e['certificate_id']}.txt" for e in self.erasures))
        self.assertEqual((folder / "certificates" / f"{self.erasures[0]['certificate_id']}.txt").read_bytes(), self.bundle())
        commands = [line.strip() for line in (folder / "README").read_text().splitlines() if line.startswith("    for ")]
        self.assertEqual(len(commands), 4)
        self.assertEqual(sorted(n.split("/")[1] for n in names if n.startswith("upgrades/")),
                         sorted(f"{e['certificate_id']}.txt" for e in self.erasures))
        tools = pathlib.Path(self.server.folder, "tools")
        tools.mkdir()
        shutil.copy(pathlib.Path(rig.options.source, "audit", "verify-with-openssl.sh"), tools)
        os.chmod(tools / "verify-with-openssl.sh", 0o755)
        if rig.options.kv_verify:
            os.symlink(os.path.abspath(rig.options.kv_verify), tools / "kv-verify")
        programs = [shutil.which(p) for p in ("openssl", "jq", "base64", "basenc", "cmp", "xxd")]
        able = (bool(rig.options.kv_verify), bool(rig.options.kv_verify), all(programs), all(programs))
        for command, runs in zip(commands, able):
            if not runs:
                continue
            environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
            done = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            victim = next((folder / "certificates").iterdir())
            good = victim.read_bytes()
            victim.write_bytes(good.replace(b"index ", b"index 1", 1))
            done = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0, "a changed one passes")
            victim.write_bytes(good)

    def test_the_archive_of_no_time_is_empty_and_valid(self):
        answer = self.get("/v1/certificates:export?to=2020-01-01T00:00:00Z")
        with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
            self.assertEqual(sorted(archive.getnames()), ["README", "keys/jwks.json", "keys/log.vkey"])

    # --- checking

    def test_a_good_one_is_valid_and_its_claim_is_repeated(self):
        report = self.verify(self.bundle()).json()
        self.assertTrue(report["valid"])
        self.assertEqual([c["ok"] for c in report["checks"]], [True] * 8)
        self.assertIn("L4", [limit["code"] for limit in report["limits"]])
        self.assertEqual(report["certificate"]["request"]["erasure"], self.erasures[0]["id"])
        jws = self.get(f"/v1/certificates/{self.erasures[0]['certificate_id']}", "application/jose").body
        report = self.verify(jws + b"\n", "application/jose").json()
        self.assertEqual((report["valid"], report["form"], len(report["checks"])), (True, "jws", 5))

    def test_a_changed_one_is_not_and_nothing_is_repeated(self):
        bundle, jws = self.bundle(), self.get(f"/v1/certificates/{self.erasures[0]['certificate_id']}", "application/jose").body
        for bad, kind in ((bundle[:-1], "text/plain"), (bundle + b"x", "text/plain"),
                          (bundle.replace(b"index ", b"index 1", 1), "text/plain"), (b"", "text/plain"),
                          (b"rubbish", "text/plain"), (b"\0" * 1000, "text/plain"), (jws[:-2], "application/jose"),
                          (jws.replace(b".", b"..", 1), "application/jose"), (b"a.b.c", "application/jose")):
            report = self.verify(bad, kind)
            self.assertEqual(report.status, 200, report)
            self.assertFalse(report.json()["valid"], bad[:40])
            self.assertNotIn("claim", report.json())
        for position in range(40, len(bundle), 97):
            changed = bundle[:position] + bytes([bundle[position] ^ 1]) + bundle[position + 1:]
            self.assertFalse(self.verify(changed).json()["valid"], position)

    def test_size_and_kind_are_bounded(self):
        self.assertEqual(self.verify(b"x" * 262144).status, 200)
        answer = self.verify(b"x" * 262145)
        self.assertEqual((answer.status, answer.code), (413, "body_too_large"))
        self.assertEqual(self.verify(b"{}", "application/json").status, 415)


if __name__ == "__main__":
    rig.main(__name__)
