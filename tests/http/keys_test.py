"""API keys: given, narrowed, rotated, revoked; where they may come from; what another tenant sees of them."""
import datetime
import os
import subprocess
import tempfile
import threading
import time
import unittest

import postgres
import rig
from exposition import Exposition

PATCH = {"Content-Type": "application/merge-patch+json"}


def ahead(**how):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(**how)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Base(rig.Suite):
    admin = path = None

    def call(self, method, path, body=None, token=None, headers=None):
        kind = PATCH if method == "PATCH" else {}
        return self.server.call(method, path, token or self.admin, body, {**kind, **(headers or {})})

    def make(self, path=None, token=None, **members):
        answer = self.call("POST", path or self.path, {"name": "k", "roles": ["engine"], **members}, token)
        self.assertEqual(answer.status, 201, answer)
        return answer.json()

    def works(self, secret, **how):
        return self.server.call("GET", f"/v1/tiers", secret, **how).status != 401


class Keys(Base):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ours, cls.theirs = cls.server.tenant("ours"), cls.server.tenant("theirs")
        cls.admin, cls.stranger = cls.server.key(cls.ours, "tenant_admin"), cls.server.key(cls.theirs, "tenant_admin")
        cls.path = f"/v1/tenants/{cls.ours}/api-keys"

    def test_the_secret_is_shown_once(self):
        made = self.make(name="kind éñ", cidrs=["10.0.0.0/8"])
        got = self.call("GET", f"{self.path}/{made['id']}").json()
        secret = made.pop("secret")
        self.assertEqual(got, made)
        listed = self.call("GET", f"{self.path}?limit=200")
        self.assertIn(made, listed.json()["data"])
        self.assertNotIn(secret.split("_")[3], listed.body.decode())
        rows = self.server.database("select string_agg(k::text, ' ') from kvrun.api_key k")
        self.assertTrue(rows is None or secret.split("_")[3] not in rows)

    def test_life_is_at_most_a_year(self):
        self.make(expires_at=ahead(days=364))
        for members in ({"expires_at": ahead(days=366)}, {"expires_at": ahead(days=-1)}, {"expires_in_seconds": 365 * 86400 + 1},
                        {"expires_at": "tomorrow"}, {"expires_at": ahead(days=1), "expires_in_seconds": 5}):
            answer = self.call("POST", self.path, {"name": "k", "roles": ["engine"], **members})
            self.assertEqual(answer.status, 400, members)

    def test_a_key_that_ends_soon_says_so(self):
        self.assertEqual(self.make(expires_at=ahead(days=13))["warnings"], ["expires_soon"])
        self.assertEqual(self.make(expires_at=ahead(days=15))["warnings"], [])

    def test_a_life_gets_shorter_only(self):
        key = self.make(expires_at=ahead(days=30))
        path = f"{self.path}/{key['id']}"
        self.assertEqual(self.call("PATCH", path, {"expires_at": ahead(days=31)}).status, 400)
        self.assertEqual(self.call("PATCH", path, {"expires_at": ahead(days=-1)}).status, 400)
        self.assertEqual(self.call("PATCH", path, {"roles": ["engine"]}).code, "immutable_field")
        shorter = self.call("PATCH", path, {"expires_at": ahead(days=3), "name": "short"})
        self.assertEqual((shorter.status, shorter.json()["name"], shorter.json()["warnings"]), (200, "short", ["expires_soon"]))

    def test_a_rotated_key_has_two_secrets_for_a_while(self):
        key = self.make()
        path = f"{self.path}/{key['id']}"
        rotated = self.call("POST", f"{path}:rotate", {"overlap_seconds": 600})
        self.assertEqual((rotated.status, rotated.json()["warnings"]), (200, ["old_secret_valid"]))
        self.assertNotEqual(rotated.json()["secret"], key["secret"])
        for secret in (key["secret"], rotated.json()["secret"]):
            self.assertTrue(self.works(secret))
        last = self.call("POST", f"{path}:rotate", {"overlap_seconds": 0}).json()
        self.assertEqual(last["warnings"], [])
        self.assertTrue(self.works(last["secret"]))
        for secret in (key["secret"], rotated.json()["secret"]):
            self.assertFalse(self.works(secret), "one rotation ends what was before it")
        self.assertEqual(self.call("POST", f"{path}:rotate", {"overlap_seconds": 604801}).status, 400)

    def test_a_dry_run_shows_no_secret_and_changes_none(self):
        key = self.make()
        would = self.call("POST", f"{self.path}/{key['id']}:rotate?dry_run=true", {"overlap_seconds": 0})
        self.assertEqual((would.status, "secret" in would.json()["would"]), (200, False))
        self.assertTrue(self.works(key["secret"]))
        would = self.call("POST", f"{self.path}?dry_run=true", {"name": "k", "roles": ["engine"]})
        self.assertEqual((would.status, "secret" in would.json()["would"]), (200, False))

    def test_a_revoked_key_is_refused_at_once(self):
        key = self.make()
        self.assertTrue(self.works(key["secret"]))
        revoked = self.call("DELETE", f"{self.path}/{key['id']}")
        self.assertEqual(revoked.status, 200)
        self.assertFalse(self.works(key["secret"]))
        again = self.call("DELETE", f"{self.path}/{key['id']}")
        self.assertEqual((again.status, again.json()), (200, revoked.json()))
        for method, tail in (("PATCH", ""), ("POST", ":rotate")):
            body = {"name": "x"} if method == "PATCH" else {}
            self.assertEqual(self.call(method, f"{self.path}/{key['id']}{tail}", body).code, "invalid_state")

    def test_a_change_is_made_from_the_revision_that_was_seen(self):
        path = f"{self.path}/{self.make()['id']}"
        seen = {"If-Match": self.call("GET", path).headers["etag"]}
        self.assertEqual(self.call("PATCH", path, {"name": "first"}, headers=seen).status, 200)
        self.assertEqual(self.call("PATCH", path, {"name": "second"}, headers=seen).status, 412)
        self.assertEqual(self.call("DELETE", path, headers=seen).status, 412)
        self.assertNotIn("revoked_at", self.call("GET", path).json())

    def test_a_key_works_from_its_ranges_only(self):
        socket = os.path.join(self.server.state, "engine.sock")
        for cidrs, here in ((["10.0.0.0/8"], False), (["127.0.0.0/8"], True), (["127.0.0.2/32"], False), (["127.0.0.1/32"], True),
                            (["::/0"], False), (["0.0.0.0/0"], True), (["10.0.0.0/8", "127.0.0.0/8"], True), ([], True)):
            key = self.make(cidrs=cidrs)
            self.assertEqual(self.works(key["secret"]), here, cidrs)
            if os.path.exists(socket):
                self.assertTrue(self.works(key["secret"], unix=socket), "whoever reaches the socket is here")
        key = self.make()
        self.assertTrue(self.works(key["secret"]))
        self.call("PATCH", f"{self.path}/{key['id']}", {"cidrs": ["10.0.0.0/8"]})
        self.assertFalse(self.works(key["secret"]), "known to memory, and read again")
        self.call("PATCH", f"{self.path}/{key['id']}", {"cidrs": None})
        self.assertTrue(self.works(key["secret"]))

    def test_ranges_have_one_spelling(self):
        self.assertEqual(self.make(cidrs=["2001:DB8:0::/32"])["cidrs"], ["2001:db8::/32"])
        self.make(cidrs=[f"10.{i}.0.0/16" for i in range(16)])
        for bad in (["10.0.0.0"], ["10.0.0.1/8"], ["10.0.0.0/33"], ["::/129"], ["::ffff:10.0.0.0/104"], ["a/8"], ["/8"], [""],
                    ["10.0.0.0/"], ["10.0.0.0/-1"], [8], [f"10.{i}.0.0/16" for i in range(17)], ["0" * 60]):
            answer = self.call("POST", self.path, {"name": "k", "roles": ["engine"], "cidrs": bad})
            self.assertEqual(answer.status, 400, bad)

    def test_a_use_is_recorded_to_the_minute(self):
        key = self.make()
        path = f"{self.path}/{key['id']}"
        self.assertNotIn("last_used_at", self.call("GET", path).json())
        self.assertTrue(self.works(key["secret"]))
        used = rig.wait_for("the janitor", lambda: self.call("GET", path).json().get("last_used_at"))
        self.assertTrue(used.endswith(":00.000000Z"), used)

    def test_a_security_officers_key_is_the_operators_to_manage(self):
        operator = self.server.operator
        self.assertEqual(self.call("POST", self.path, {"name": "s", "roles": ["security_officer"]}).code, "forbidden")
        key = self.make(token=operator, roles=["security_officer"])
        path = f"{self.path}/{key['id']}"
        self.assertEqual(self.call("GET", path).status, 200)
        for method, tail in (("PATCH", ""), ("DELETE", ""), ("POST", ":rotate")):
            body = {"PATCH": {"name": "x"}, "POST": {}, "DELETE": None}[method]
            self.assertEqual(self.call(method, path + tail, body).code, "forbidden", method)
        self.assertEqual(self.call("DELETE", path, token=operator).status, 200)

    def test_roles_of_the_platform(self):
        operator, path = self.server.operator, "/v1/api-keys"
        for roles, status in ((["operator"], 201), (["viewer"], 201), (["metrics"], 201), (["auditor", "viewer"], 201),
                              (["security_officer"], 201), (["operator", "security_officer"], 422), (["auditor", "operator"], 422),
                              (["metrics", "viewer"], 422), (["engine"], 400), (["tenant_admin"], 400)):
            answer = self.call("POST", path, {"name": "k", "roles": roles}, operator)
            self.assertEqual(answer.status, status, roles)
            self.assertEqual(status != 422 or answer.code == "role_conflict", True)
            self.assertEqual(self.call("POST", path, {"name": "k", "roles": roles}).status, 403, "a tenant's administrator")

    def test_one_operator_replaces_another_and_the_last_one_stays(self):
        second = self.make("/v1/api-keys", self.server.operator, roles=["operator"], name="second")
        operators = [key for key in self.call("GET", "/v1/api-keys?limit=200", token=second["secret"]).json()["data"]
                     if "operator" in key["roles"] and "revoked_at" not in key and key["id"] != second["id"]]
        for key in operators[:-1] if len(operators) > 1 else []:
            self.assertEqual(self.call("DELETE", f"/v1/api-keys/{key['id']}", token=second["secret"]).status, 200)
        self.assertEqual(self.call("DELETE", f"/v1/api-keys/{second['id']}", token=second["secret"]).status, 200)
        left = [key for key in self.call("GET", "/v1/api-keys?limit=200", token=self.server.operator).json()["data"]
                if "operator" in key["roles"] and "revoked_at" not in key]
        self.assertEqual(len(left), 1)
        last = self.call("DELETE", f"/v1/api-keys/{left[0]['id']}", token=self.server.operator)
        self.assertEqual((last.status, last.code), (409, "last_operator_key"))

    def test_another_tenants_answers_like_one_that_is_not_there(self):
        key, nothing = self.make()["id"], "key_" + "0" * 26
        own = f"/v1/tenants/{self.theirs}/api-keys"
        for method, tail in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", ":rotate")):
            body = {"PATCH": {"name": "x"}, "POST": {}}.get(method)
            answers = [self.call(method, f"{base}/{id}{tail}", body, self.stranger)
                       for base, id in ((own, key), (own, nothing), (self.path, key), (self.path, nothing))]
            documents = [answer.json() for answer in answers]
            for document in documents:
                del document["request_id"], document["instance"]
            self.assertEqual([answer.status for answer in answers], [404] * 4, method)
            self.assertEqual(documents[0], documents[1], method)
            self.assertEqual(documents[2], documents[3], method)
        self.assertEqual(self.call("GET", f"/v1/api-keys/{key}", token=self.server.operator).status, 404, "no platform key")

    def test_a_tenant_has_so_many_keys_and_no_more(self):
        tenant = self.server.tenant("many")
        path, operator = f"/v1/tenants/{tenant}/api-keys", self.server.operator
        made = [self.make(path, operator)["id"] for _ in range(100)]
        over = self.call("POST", path, {"name": "k", "roles": ["engine"]}, operator)
        self.assertEqual((over.status, over.code), (422, "limit"))
        self.call("DELETE", f"{path}/{made[0]}", token=operator)
        self.make(path, operator)


class Operators(Base):
    """The last way in: not lost by a request, and found again by the owner of the machine."""
    path = "/v1/api-keys"

    def operators(self, token):
        return [key for key in self.call("GET", "/v1/api-keys?limit=200", token=token).json()["data"]
                if "operator" in key["roles"] and "revoked_at" not in key]

    def setUp(self):
        """One operator key, fresh."""
        fresh = self.make(token=self.server.operator, roles=["operator"])
        for key in self.operators(fresh["secret"]):
            if key["id"] != fresh["id"]:
                self.assertEqual(self.call("DELETE", f"{self.path}/{key['id']}", token=fresh["secret"]).status, 200)
        self.server.operator, self.last = fresh["secret"], f"{self.path}/{fresh['id']}"

    def losses(self):
        """Every way to lose the last key."""
        far = {"cidrs": ["10.0.0.0/8"]}
        return (("POST", self.last + ":rotate", {"expires_in_seconds": 86399, "overlap_seconds": 600}),
                ("PATCH", self.last, {"expires_at": ahead(hours=23)}), ("PATCH", self.last, far),
                ("PATCH", self.last, {"cidrs": ["::/0"]}), ("PATCH", self.last, {"expires_at": ahead(days=3), **far}),
                ("DELETE", self.last, None))

    def test_no_change_takes_the_last_way_in(self):
        for method, target, body in self.losses():
            for how in ("", "?dry_run=true"):
                answer = self.call(method, target + how, body, self.server.operator)
                self.assertEqual((answer.status, answer.code), (409, "last_operator_key"), (method, body))
        self.assertTrue(self.works(self.server.operator))
        for body in ({"name": "the last"}, {"cidrs": ["127.0.0.0/8"]}, {"expires_at": ahead(days=2)}, {"cidrs": None}):
            self.assertEqual(self.call("PATCH", self.last, body, self.server.operator).status, 200, body)
        rotated = self.call("POST", self.last + ":rotate", {"expires_in_seconds": 86400 + 60}, self.server.operator)
        self.assertEqual(rotated.status, 200, rotated)
        self.server.operator = rotated.json()["secret"]

    def test_a_key_that_would_not_do_is_none(self):
        for members in ({"cidrs": ["10.0.0.0/8"]}, {"expires_at": ahead(hours=20)}, {"roles": ["viewer"]}):
            self.make(token=self.server.operator, **{"roles": ["operator"], **members})
        for method, target, body in self.losses():
            self.assertEqual(self.call(method, target, body, self.server.operator).code, "last_operator_key", (method, body))

    def test_with_another_key_each_change_is_made(self):
        second = self.make(token=self.server.operator, roles=["operator"], name="second", cidrs=["127.0.0.0/8"])
        self.server.operator = second["secret"]
        for method, target, body in self.losses()[:3] + self.losses()[5:]:
            answer = self.call(method, target, body, second["secret"])
            self.assertEqual(answer.status, 200, (method, body, answer))

    def test_of_two_who_are_revoked_at_once_one_stays(self):
        second = self.make(token=self.server.operator, roles=["operator"])
        answers = []
        both = [threading.Thread(target=lambda path=path: answers.append(self.call("DELETE", path, token=second["secret"])))
                for path in (self.last, f"{self.path}/{second['id']}")]
        for one in both:
            one.start()
        for one in both:
            one.join(60)
        self.assertEqual(sum(answer.status == 200 for answer in answers), 1, answers)
        if self.works(second["secret"]):
            self.server.operator = second["secret"]
        self.assertEqual(len(self.operators(self.server.operator)), 1)

    def recover(self, *flags, folder=None):
        return subprocess.run([rig.options.kvrun, "keys", "recover", f"--state.dir={folder or self.server.state}", *flags],
                              capture_output=True, text=True, timeout=120, check=False)

    def kept(self, folder=None):
        path = os.path.join(folder or self.server.state, "operator.key")
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        with open(path, encoding="ascii") as file:
            return file.read().strip()

    def test_a_lost_one_is_replaced_while_the_server_runs_and_while_it_does_not(self):
        before = self.kept()
        done = self.recover()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        found = self.kept()
        self.assertNotIn(found, done.stdout + done.stderr)
        self.assertNotEqual(found, before)
        self.assertTrue(self.works(found))
        self.assertEqual([key["name"] for key in self.operators(found)][:1], ["recovered operator key"])
        audited = rig.wait_for("its entry", lambda: [
            entry for entry in self.call("GET", "/v1/audit/entries?op=key.recover", token=self.auditor(found)).json()["data"]])
        self.assertEqual(len(audited), 1)
        self.assertEqual(self.server.stop(), 0)
        done = self.recover()
        self.assertEqual(done.returncode, 0, done)
        self.server.start()
        self.assertTrue(self.works(self.kept()))
        self.server.operator = self.kept()
        self.assertTrue(self.works(found), "one more, not another")

    def auditor(self, operator):
        return self.make(token=operator, roles=["auditor"])["secret"]

    def test_what_is_not_there_is_not_made(self):
        with tempfile.TemporaryDirectory(prefix="kvr.") as folder:
            for path in (folder, folder + "/nowhere"):
                done = self.recover(folder=path)
                self.assertEqual(done.returncode, 3, done)
                self.assertRegex(done.stderr, "^kvrun: there is no ")
            self.assertEqual(os.listdir(folder), [])

    @unittest.skipIf(os.getuid() != 0, "only root can give a folder away")
    def test_a_folder_of_another_user_is_refused(self):
        with tempfile.TemporaryDirectory(prefix="kvr.") as folder:
            os.chown(folder, 65534, 65534)
            done = self.recover(folder=folder)
            self.assertEqual((done.returncode, os.listdir(folder)), (4, []), done)
            self.assertIn("run this as the user 65534", done.stderr)

    def test_with_a_database_of_its_own_the_schema_has_to_be_there(self):
        database = postgres.Postgres()
        self.addCleanup(database.remove)
        with tempfile.TemporaryDirectory(prefix="kvr.") as folder:
            done = self.recover(f"--db.url={database.url}", folder=folder)
            self.assertEqual((done.returncode, os.listdir(folder)), (5, []), done)
            migrated = subprocess.run([rig.options.kvrun, "db", "migrate", f"--db.url={database.url}"], check=False,
                                      capture_output=True, timeout=120)
            self.assertEqual(migrated.returncode, 0, migrated)
            done = self.recover(f"--db.url={database.url}", folder=folder)
            self.assertEqual(done.returncode, 0, done)
            self.assertTrue(self.kept(folder).startswith("kvrun_live_"))
            self.assertEqual(database.sql("SELECT count(*) FROM kvrun.api_key"), "1")
            self.assertEqual(database.sql("SELECT count(*) FROM kvrun.audit_outbox"), "1")
            database.stop()
            self.assertEqual(self.recover(f"--db.url={database.url}", folder=folder).returncode, 6)


class OperatorsEnd(rig.Suite):
    def test_the_end_of_the_last_operator_key_is_said_in_the_last_week(self):
        def last_end():
            samples = Exposition(self.server.call("GET", "/metrics", self.server.operator, admin=True).body.decode()).samples
            return samples["kvrun_operator_keys_end_timestamp_seconds"]

        def lines():
            return [line for line in list(self.server.log) if '"operator-keys-end"' in line]

        rig.wait_for("the count", lambda: last_end() > time.time() + 30 * 86400, 120)
        self.assertEqual(lines(), [], "months are no reason to say anything")
        mine = "where tenant_id is null and roles & 1 <> 0"
        if self.server.database(f"update api_key set expires_at = now() + interval '8 days' {mine}") is None:
            self.skipTest("psql is not installed")
        rig.wait_for("the next count", lambda: last_end() < time.time() + 9 * 86400, 120)
        self.assertEqual(lines(), [], "eight days")
        self.server.database(f"update api_key set expires_at = now() + interval '6 days' {mine}")
        line = rig.wait_for("the warning", lines, 120)[0]
        self.assertIn("kvrun keys create", line)
        self.assertLess(last_end(), time.time() + 7 * 86400)


if __name__ == "__main__":
    rig.main(__name__)
