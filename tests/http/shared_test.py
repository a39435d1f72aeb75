"""Scopes that sessions share: their blocks, their end, and what an attacker has of them before and after."""
import json
import os
import pathlib
import shutil
import subprocess

import rig
from engine import Engine

MODEL = {"id": "m", "revision": "r"}
TIERS = {"dram": {}, "nvme": {}}
RETAIN = {"tiers": TIERS, "sharing": {"mode": "scope", "on_erase": "retain"}}
CASCADE = {"tiers": TIERS, "sharing": "scope"}


class Shared(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("ours")
        cls.admin, cls.officer = cls.server.key(cls.tenant, "tenant_admin"), cls.server.key(cls.tenant, "security_officer")
        cls.engine = Engine(cls.server, cls.server.key(cls.tenant, "engine"), slots=8).open_pool().beat()

    def setUp(self):
        self.put_policy(CASCADE)

    def call(self, method, path, body=None, status=200, token=None, **headers):
        answer = self.server.call(method, path, token or self.admin, body, headers)
        self.assertEqual(answer.status, status, answer)
        return answer.json() if answer.body else None

    def put_policy(self, policy):
        answer = self.server.call("PUT", f"/v1/tenants/{self.tenant}/policy", self.officer, policy)
        self.assertIn(answer.status, (200, 201), answer)

    def make(self, scope=None, status=201, **members):
        body = {"model": MODEL, **members, **({"sharing_scope": scope} if scope is not None else {})}
        return self.call("POST", "/v1/sessions", body, status)

    def erase(self, session):
        return self.call("POST", "/v1/erasures", {"scope": {"session_id": session}}, 200, Prefer="wait=30")

    def certificate(self, erasure):
        answer = self.server.call("GET", f"/v1/erasures/{erasure}/certificate", self.admin, headers={"Accept": "application/json"})
        self.assertEqual(answer.status, 200, answer)
        return answer.json()["certificate"]

    def state(self, session):
        return self.call("GET", f"/v1/sessions/{session}?expand=erasure")["state"]

    def fill(self, session, texts, shared):
        for slot, text in enumerate(texts):
            self.engine.fill(slot, text)
        answer = self.engine.offload(session, texts, range(len(texts)), shared_blocks=shared, wait="durable")
        self.assertEqual(answer.status, 200, answer)
        return answer.json()

    def results(self, session, texts, shared):
        for slot in range(len(texts)):
            self.engine.fill(slot, "other")
        answer = self.engine.restore(session, texts, range(len(texts)), shared_blocks=shared)
        self.assertEqual(answer.status, 200, answer)
        return answer.json()

    def test_a_session_says_what_it_shares_and_a_list_of_scopes_names_them(self):
        one, two, alone = self.make("prompt-1"), self.make("prompt-1"), self.make()
        self.assertEqual(one["sharing_scope"], two["sharing_scope"])
        self.assertNotIn("sharing_scope", alone)
        scope = one["sharing_scope"]["id"]
        self.assertEqual(self.call("GET", f"/v1/sessions/{scope}")["external_id"], "prompt-1")
        listed = self.call("GET", "/v1/sessions?kind=scope&limit=200")["data"]
        self.assertIn((scope, "scope"), [(entry["id"], entry["kind"]) for entry in listed])
        self.assertNotIn(scope, [entry["id"] for entry in self.call("GET", "/v1/sessions?limit=200")["data"]])
        self.assertNotIn("prompt-1", "".join(self.server.log))

    def test_what_is_no_name_is_refused_with_its_place(self):
        for wrong in ("", "x" * 129, "a b", "a\nb", 5, None):
            answer = self.server.call("POST", "/v1/sessions", self.admin, {"model": MODEL, "sharing_scope": wrong})
            self.assertEqual((answer.status, answer.pointer), (400, "/sharing_scope"), wrong)
        self.make("x" * 128)
        answer = self.server.call("PATCH", f"/v1/sessions/{self.make('p')['id']}", self.admin, {"sharing_scope": "q"},
                                  {"Content-Type": "application/merge-patch+json"})
        self.assertEqual((answer.status, answer.pointer), (422, "/sharing_scope"))

    def test_blocks_are_shared_and_each_is_stored_once(self):
        one, two = self.make("shared"), self.make("shared")
        texts = ["s1", "s2", "own"]
        self.assertEqual(self.fill(one["id"], texts, 2)["stored"], 3)
        self.assertEqual(self.results(two["id"], texts, 2)["results"], ["restored", "restored", "missing"])
        done = self.fill(two["id"], texts, 2)
        self.assertEqual((done["results"], done["stored"], done["present"]), (["present", "present", "stored"], 1, 2))
        done = self.results(two["id"], texts, 2)
        self.assertEqual((done["restored"], done["contiguous_blocks"]), (3, 3))
        self.assertEqual(self.engine.lookup(two["id"], texts).json()["prefix_blocks"], 0)  # none of these is its own at their place
        found = self.engine.call("/v1/lookups", two["id"], texts, shared_blocks=2).json()
        self.assertEqual(found["prefix_blocks"], 3)

    def test_numbers_that_do_not_fit_are_refused(self):
        shares, alone = self.make("numbers")["id"], self.make()["id"]
        for session, number in ((shares, 3), (shares, -1), (shares, 4097), (shares, "1"), (alone, 1)):
            answer = self.engine.restore(session, ["a", "b"], (0, 1), shared_blocks=number)
            self.assertEqual((answer.status, answer.pointer), (400, "/shared_blocks"), (session, number))
        self.assertEqual(self.engine.restore(shares, ["a", "b"], (0, 1), shared_blocks=2).status, 200)
        scope = self.call("GET", f"/v1/sessions/{shares}")["sharing_scope"]["id"]
        self.assertEqual(self.engine.restore(scope, ["a"], (0,)).status, 404)

    def test_others_recompute_when_a_session_takes_the_scope_along(self):
        one, two = self.make("gone"), self.make("gone")
        scope = one["sharing_scope"]["id"]
        self.fill(one["id"], ["g1", "g2"], 1)
        self.fill(two["id"], ["g1", "g2"], 1)
        dry = self.call("POST", "/v1/erasures?dry_run=true", {"scope": {"session_id": one["id"]}})["would"]
        self.assertEqual(dry["shared_scopes"], {"erased": 1, "retained": 0})
        self.assertNotIn("L6", dry["limits_that_would_apply"])
        done = self.erase(one["id"])
        self.assertEqual(self.results(two["id"], ["g1", "g2"], 1)["results"], ["missing", "restored"])
        self.assertEqual(self.fill(two["id"], ["g1", "g2"], 1)["results"], ["erased", "present"])
        payload = self.certificate(done["id"])
        self.assertEqual([entry["scope"] for entry in payload["shared"]["erased"]], [scope])
        self.assertEqual(self.erase(scope)["id"], payload["shared"]["erased"][0]["erasure"])
        self.assertEqual(self.certificate(self.erase(scope)["id"])["sub"]["kind"], "scope")
        self.assertEqual(self.state(scope), "erased")
        self.assertNotEqual(self.make("gone")["sharing_scope"]["id"], scope)

    def test_a_scope_that_stays_is_listed_with_its_limit(self):
        self.put_policy(RETAIN)
        one, two = self.make("kept"), self.make("kept")
        scope = one["sharing_scope"]["id"]
        self.fill(one["id"], ["k1"], 1)
        dry = self.call("POST", "/v1/erasures?dry_run=true", {"scope": {"session_id": one["id"]}})["would"]
        self.assertEqual(dry["shared_scopes"], {"erased": 0, "retained": 1})
        self.assertIn("L6", dry["limits_that_would_apply"])
        payload = self.certificate(self.erase(one["id"])["id"])
        self.assertEqual(payload["shared"], {"erased": [], "retained": [{"scope": scope, "sessions": "1"}]})
        self.assertIn("L6", [limit["code"] for limit in payload["limits"]])
        self.assertEqual(self.results(two["id"], ["k1"], 1)["results"], ["restored"])
        payload = self.certificate(self.erase(two["id"])["id"])
        self.assertEqual([entry["scope"] for entry in payload["shared"]["erased"]], [scope])
        self.assertNotIn("L6", [limit["code"] for limit in payload["limits"]])

    def test_certificates_of_all_kinds_verify_without_the_server(self):
        if not rig.options.kv_verify:
            self.skipTest("kv-verify was not built")
        self.put_policy(RETAIN)
        one, two = self.make("verified"), self.make("verified")
        erasures = [self.erase(session["id"])["id"] for session in (one, two)] + [self.erase(one["sharing_scope"]["id"])["id"]]
        recipe = pathlib.Path(rig.options.source, "audit", "verify-with-openssl.sh")
        for erasure in erasures:
            folder = pathlib.Path(self.server.folder, erasure)
            folder.mkdir()
            for name, path, headers in (("certificate.txt", f"/v1/erasures/{erasure}/certificate", {"Accept": "text/plain"}),
                                        ("jwks.json", "/.well-known/kvrun/jwks.json", {}), ("log.vkey", "/.well-known/kvrun/log.vkey", {})):
                folder.joinpath(name).write_bytes(self.server.call("GET", path, self.admin, headers=headers).body)
            for command in ([rig.options.kv_verify, folder / "certificate.txt"], [recipe, folder / "certificate.txt", folder]):
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, (command, done.stdout, done.stderr))

    # --- who has the database, the tiers and the root of erasure

    def steal(self, name):
        """What there is now: a dump, the tier's folder, the root."""
        folder = pathlib.Path(self.server.folder, name)
        folder.mkdir()
        where = pathlib.Path(self.server.state, "postgres.socket").read_text().strip()
        dump = subprocess.run([rig.postgres_program("pg_dump"), f"host={where} port=5432 user=kvrun dbname=postgres"], check=True,
                              capture_output=True)
        folder.joinpath("dump.sql").write_bytes(dump.stdout)
        config = {entry.name: entry for entry in pathlib.Path(self.server.state).iterdir()}
        shutil.copy(config["root"], folder / "root")
        shutil.copytree(config["nvme"], folder / "nvme")
        return folder

    def opened(self, session, dumps, root, arena):
        command = [os.path.join(os.path.dirname(rig.options.kvrun), "kvrun-attack"), "--json", "--session", session,
                   "--root", root / "root", "--arena", arena / "nvme"]
        for dump in dumps:
            command += ["--dump", dump / "dump.sql"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return found["opened"], found["copies"]

    def test_an_attacker_opens_a_scope_until_it_is_erased_and_not_after(self):
        if rig.postgres_program("pg_dump") is None or not os.path.exists(os.path.join(os.path.dirname(rig.options.kvrun), "kvrun-attack")):
            self.skipTest("pg_dump or kvrun-attack is not there")
        self.put_policy(RETAIN)
        one, two = self.make("stolen"), self.make("stolen")
        scope = one["sharing_scope"]["id"]
        self.fill(one["id"], ["a1", "a2", "a3"], 2)
        before = self.steal("before")
        self.assertEqual(self.opened(scope, [before], before, before), (2, 2))
        self.erase(one["id"])
        kept = self.steal("kept")
        self.assertEqual(self.opened(one["id"], [before, kept], kept, before), (0, 1))
        self.assertEqual(self.opened(scope, [before, kept], kept, before), (2, 2))  # the control: it stays for the other
        self.erase(two["id"])
        after = self.steal("after")
        self.assertEqual(self.opened(scope, [before, kept, after], after, before), (0, 2))


if __name__ == "__main__":
    rig.main(__name__)
