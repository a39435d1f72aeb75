"""What an operator sees of the instance: status, configuration, log level, tiers, engines, advice about backups."""
import hashlib
import os
import re
import unittest
from pathlib import Path

import postgres
import rig
from engine import Engine, answered

PATCH = {"Content-Type": "application/merge-patch+json"}


class Status(rig.Suite):
    server_options = ("--log.level=info", "--rate.default=0")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("seen")
        cls.other = cls.server.tenant("other")
        cls.admin = cls.server.key(cls.tenant, "tenant_admin")
        cls.token = cls.server.key(cls.tenant, "engine")

    def get(self, path, token=None, status=200):
        answer = self.server.call("GET", path, token or self.server.operator)
        self.assertEqual(answer.status, status, answer)
        return answer.json()

    def change(self, status=200, **body):
        answer = self.server.call("PATCH", "/v1/loglevel", self.server.operator, body, PATCH)
        self.assertEqual(answer.status, status, answer)
        return answer.json()

    def test_status(self):
        rig.wait_for("readiness", lambda: self.server.call("GET", "/readyz").status == 200)
        status = self.get("/v1/status")
        self.assertEqual(status["state"], "ready")
        self.assertTrue(all(check["ok"] for check in status["checks"]))
        self.assertEqual(status["database"], {"reachable": True, "private": True, "pooled": False,
                                              "schema_version": status["database"]["schema_version"]})
        self.assertTrue(status["lease"]["valid"])
        self.assertLess(status["uptime_seconds"], 600)
        self.assertEqual([tier["name"] for tier in status["tiers"]], ["dram", "nvme"])
        self.assertIn("root_in_state", [warning["code"] for warning in status["warnings"]])
        self.assertNotIn("insecure_listen", [warning["code"] for warning in status["warnings"]])
        version = self.get("/version")
        self.assertEqual((status["instance"], status["cluster"]), (version["instance"], version["cluster"]))

    def test_status_counts_what_is_there(self):
        before = self.get("/v1/status")["engines"]
        Engine(self.server, self.token, name="counted").open_pool()
        after = self.get("/v1/status")["engines"]
        self.assertEqual(after, {"registered": before["registered"] + 1, "pools": before["pools"] + 1})

    def test_tiers(self):
        full = self.get("/v1/tiers")["data"]
        self.assertEqual(full[0]["capacity_bytes"], 64 << 20)
        own = self.get("/v1/tiers", self.admin)["data"]
        self.assertEqual(own, [{"name": "dram", "state": "up"}, {"name": "nvme", "state": "up"}])
        self.assertEqual(self.get("/v1/tiers/nvme")["name"], "nvme")
        self.assertEqual(self.get("/v1/tiers/dram", self.admin), own[0])
        self.get("/v1/tiers/object", status=404)

    def tier(self, state, status=200, match=None, query=""):
        headers = {**PATCH, **({"If-Match": match} if match else {})}
        answer = self.server.call("PATCH", "/v1/tiers/nvme" + query, self.server.operator, {"state": state}, headers)
        self.assertEqual(answer.status, status, answer)
        return answer

    def test_a_draining_tier_takes_no_new_block(self):
        engine = Engine(self.server, self.token, name="drainer").open_pool()
        session = self.server.session(self.token)
        for slot, name in enumerate("ab"):
            engine.fill(slot, name)
        before = rig.wait_for("the block", lambda: answered(engine.offload(session, ["a"], [0], wait="durable")))
        self.assertEqual(before.json()["results"], ["stored"])
        seen = self.server.call("GET", "/v1/tiers/nvme", self.server.operator)
        self.assertEqual(self.tier("draining", query="?dry_run=true").json()["would"]["state"], "draining")
        self.assertEqual(self.get("/v1/tiers/nvme")["state"], "up")
        done = self.tier("draining", match=seen.headers["etag"])
        self.assertEqual(done.json()["state"], "draining")
        self.tier("up", 412, match=seen.headers["etag"])
        try:
            self.assertEqual(self.get("/v1/tiers", self.admin)["data"][1], {"name": "nvme", "state": "draining"})
            refused = engine.offload(session, ["b"], [1], wait="durable")
            self.assertNotEqual((refused.json().get("results"), refused.json().get("tiers")), (["stored"], ["nvme"]))
            self.assertEqual(engine.restore(session, ["a"], [2]).json()["results"], ["restored"])
        finally:
            self.tier("up", match=done.headers["etag"])
        stored = rig.wait_for("the block", lambda: answered(engine.offload(session, ["b"], [1], wait="durable")))
        self.assertIn(stored.json()["results"], (["stored"], ["present"]))

    def test_a_tier_s_change_is_checked(self):
        for body, status in (({"state": "down"}, 400), ({}, 400), ({"state": "up", "capacity_bytes": 1}, 422)):
            answer = self.server.call("PATCH", "/v1/tiers/nvme", self.server.operator, body, PATCH)
            self.assertEqual(answer.status, status, answer)
        answer = self.server.call("PATCH", "/v1/tiers/object", self.server.operator, {"state": "up"}, PATCH)
        self.assertEqual(answer.status, 404)

    def test_engines_are_seen_by_their_own(self):
        first = Engine(self.server, self.token, name="first").open_pool()
        stranger_token = self.server.key(self.other, "engine")
        stranger = Engine(self.server, stranger_token, name="stranger")
        one = self.get(f"/v1/engines/{first.id}", self.admin)
        self.assertEqual((one["name"], one["pools"], one["tenant_id"]), ("first", 1, self.tenant))
        self.assertEqual(self.get(f"/v1/engines/{stranger.id}")["name"], "stranger")
        self.get(f"/v1/engines/{stranger.id}", self.admin, 404)
        names = [engine["name"] for engine in self.get("/v1/engines?limit=200", self.admin)["data"]]
        self.assertIn("first", names)
        self.assertNotIn("stranger", names)
        seen = [engine["name"] for engine in self.get("/v1/engines?limit=200&order=asc")["data"]]
        self.assertLess(seen.index("first"), seen.index("stranger"))

    def test_pages_of_engines_have_each_once(self):
        engines = [Engine(self.server, self.token, name=f"page-{i}") for i in range(5)]
        for order in ("asc", "desc"):
            found, path = [], f"/v1/engines?limit=2&order={order}"
            while path:
                page = self.get(path, self.admin)
                self.assertLessEqual(len(page["data"]), 2)
                found += [engine["id"] for engine in page["data"]]
                cursor = page["next_cursor"]
                path = f"/v1/engines?limit=2&order={order}&cursor={cursor}" if cursor else None
            self.assertEqual(len(found), len(set(found)))
            mine = [engine for engine in found if engine in [e.id for e in engines]]
            wanted = [e.id for e in engines]
            self.assertEqual(mine, wanted if order == "asc" else wanted[::-1])

    def test_configuration_and_its_origins(self):
        data = {entry["key"]: entry for entry in self.get("/v1/config")["data"]}
        self.assertEqual(data["log.level"], {"key": "log.level", "value": "info", "origin": "flag", "reloadable": True})
        self.assertEqual(data["tiers.dram.bytes"]["value"], 64 << 20)
        self.assertEqual(data["db.url"]["value"], "")
        self.assertEqual(data["shutdown.grace"], {"key": "shutdown.grace", "value": 25000, "origin": "default",
                                                  "reloadable": False})

    def test_log_level_of_a_module_reverts_by_itself(self):
        done = self.change(module="store", level="debug", for_seconds=2)
        self.assertEqual([(c["module"], c["level"]) for c in done["changed"]], [("store", "debug")])
        self.assertIn("log_level_changed", [w["code"] for w in self.get("/v1/status")["warnings"]])
        rig.wait_for("the level's return", lambda: self.get("/v1/loglevel")["changed"] == [])
        self.assertEqual(self.get("/v1/loglevel")["level"], "info")

    def test_log_level_of_all_is_in_force_and_ended(self):
        def logged(since):  # lines of earlier requests may come late
            return [line for line in self.server.log[since:] if '"level":"info"' in line and '"route":"/v1/tenants"' in line]

        self.change(level="error", for_seconds=60)
        since = len(self.server.log)
        self.server.tenant("quiet")
        self.change(level="info", for_seconds=0)
        self.assertEqual(self.get("/v1/loglevel")["changed"], [])
        self.server.tenant("heard")
        rig.wait_for("the line of the second", lambda: logged(since))
        self.assertEqual(len(logged(since)), 1)

    def test_log_level_is_checked(self):
        for body, pointer in (({"level": "loud", "for_seconds": 1}, "/level"), ({"level": "info"}, "/for_seconds"),
                              ({"level": "info", "for_seconds": 3601}, "/for_seconds"),
                              ({"level": "info", "for_seconds": -1}, "/for_seconds"),
                              ({"module": "nothing", "level": "info", "for_seconds": 1}, "/module"),
                              ({"for_seconds": 1}, "/level")):
            answer = self.server.call("PATCH", "/v1/loglevel", self.server.operator, body, PATCH)
            self.assertEqual((answer.status, answer.pointer), (400, pointer), answer)
        self.assertEqual(self.change(level="info", for_seconds=3600)["changed"][0]["level"], "info")
        self.change(level="info", for_seconds=0)

    def test_every_module_of_the_log_can_be_named(self):
        found = set()
        for folder in ("server", "dataplane", "audit", "policies"):
            for path in Path(rig.options.source, folder).rglob("*.c"):
                if path.name.startswith(("verify_main", "demo")):
                    continue
                found |= set(re.findall(r'\bkv_log\([^;"]*?,\s*"([a-z_-]+)",', path.read_text()))
        named = set(rig.contract.document["components"]["schemas"]["LogModule"]["enum"])
        self.assertLessEqual(found - {"fault"}, named, "add them to LogModule in openapi.yaml and to MODULE_WORDS")
        for module in sorted(named)[:3]:
            self.change(module=module, level="info", for_seconds=0)

    def test_backups(self):
        advice = self.get("/v1/backups")
        self.assertTrue(advice["root_at_risk"])
        by = {entry["what"]: entry for entry in advice["data"]}
        self.assertEqual(by["root_of_erasure"]["advice"], "never")
        self.assertEqual(by["root_of_erasure"]["where"], os.path.join(os.path.realpath(self.server.state), "root"))
        self.assertEqual(by["database"]["advice"], "back_up")
        self.assertEqual(by["nvme_tier"]["advice"], "not_needed")

    def test_others_are_refused(self):
        for path in ("/v1/status", "/v1/config", "/v1/loglevel", "/v1/backups"):
            self.get(path, self.admin, 403)


class Elsewhere(unittest.TestCase):
    def test_secrets_are_not_shown_and_the_change_is_recorded(self):
        database = postgres.Postgres()
        self.addCleanup(database.remove)
        url = database.url + " password=hunter2"
        secret = Path(database.folder, "url")
        secret.write_text(url + "\n", encoding="ascii")
        secret.chmod(0o600)
        server = rig.Server(environment={"KVRUN_DB_URL_FILE": str(secret)})
        self.addCleanup(server.remove)
        entries = {e["key"]: e for e in server.call("GET", "/v1/config", server.operator).json()["data"]}
        digest = hashlib.sha256(url.encode()).hexdigest()[:8]
        self.assertEqual(entries["db.url"]["value"], f"*** sha256:{digest}")
        self.assertEqual(entries["db.url"]["origin"], "environment")
        answer = server.call("PATCH", "/v1/loglevel", server.operator, {"level": "debug", "for_seconds": 60}, PATCH)
        self.assertEqual(answer.status, 200, answer)
        rig.wait_for("the entry", lambda: "config.loglevel" in database.sql(
            "SELECT convert_from(entry, 'UTF8') FROM kvrun.audit_leaf"))
        self.assertEqual(server.call("GET", "/v1/status", server.operator).json()["database"]["private"], False)
        self.status_without_a_database(server, database)
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("hunter2", "".join(server.log))

    def status_without_a_database(self, server, database):
        database.stop()

        def degraded():
            answer = server.call("GET", "/v1/status", server.operator)
            return answer.status == 200 and answer.json()["state"] == "degraded"

        try:
            rig.wait_for("a status that says so", degraded)
        finally:
            database.start()


if __name__ == "__main__":
    rig.main(__name__)
