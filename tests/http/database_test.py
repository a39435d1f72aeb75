"""The database ends, restarts, cuts connections and falls silent, under load: callers are told to come back, everything
heals by itself, and what callers were told is what there is."""
import os
import signal
import threading
import time
import unittest
import uuid

import postgres
import rig
from engine import Engine, answered

OUTAGE = 30 if os.environ.get("KV_LONG") else 5
HEALS_WITHIN = 2
MODEL = {"model": {"id": "m", "revision": "r"}}


def takes_keys(path):
    """Whether the route takes an Idempotency-Key."""
    parameters = rig.contract.document["paths"][path]["post"].get("parameters", []) if rig.contract.document else []
    return any(parameter.get("$ref", "").endswith("/IdempotencyKey") for parameter in parameters)


class Load:
    """Callers that make things, repeat what they are told to repeat, and remember what they were told."""

    def __init__(self, server, token, callers=4):
        self.server, self.token = server, token
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.refusals, self.tenants, self.sessions, self.strange, self.good_at = [], {}, {}, [], []
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(callers)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        while not self.stop.is_set():
            if number % 2 == 0 and takes_keys("/v1/sessions"):
                self.until_done("/v1/sessions", self.token, MODEL, self.sessions, str(uuid.uuid4()))
            else:
                name = "t-" + uuid.uuid4().hex[:20]
                self.until_done("/v1/tenants", self.server.operator, {"name": name}, self.tenants, name)

    def until_done(self, path, token, body, done, key):
        headers = {"Idempotency-Key": key} if takes_keys(path) else {}
        tried = 0
        while True:
            answer = self.server.call("POST", path, token, body, headers)
            tried += 1
            with self.lock:
                if answer.status == 201:
                    done[key] = answer.json()["id"]
                    self.good_at.append(time.monotonic())
                    return
                if answer.status == 409 and answer.code == "tenant_exists" and tried > 1 and not headers:
                    done[key] = None  # it was made, and the answer was lost with the database
                    return
                self.refusals.append(answer)
                if answer.status != 503 and answer.code != "idempotency_in_progress":
                    self.strange.append(answer)
                    return
            if self.stop.is_set() and tried > 200:
                return
            time.sleep(0.05)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)


class Database(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.postgres = postgres.Postgres()
        cls.server = rig.Server(f"--db.url={cls.postgres.url}", "--instance.lease=6s", "--rate.default=0")
        cls.tenant = cls.server.tenant("held")
        cls.token = cls.server.key(cls.tenant, "engine")

    @classmethod
    def tearDownClass(cls):
        lived, code = cls.server.alive(), cls.server.stop()
        tail = "".join(cls.server.log[-10:])
        cls.server.remove()
        cls.postgres.remove()
        assert lived and code == 0, f"{code}\n{tail}"

    def wait_ready(self):
        rig.wait_for("readiness", lambda: self.server.call("GET", "/readyz").status == 200)

    def ids(self, table):
        text = self.postgres.sql(f"SELECT encode(id, 'hex') FROM kvrun.{table}") if self.ids_are_bytes(table) else \
            self.postgres.sql(f"SELECT id FROM kvrun.{table}")
        return text.split()

    def ids_are_bytes(self, table):
        return self.postgres.sql("SELECT data_type FROM information_schema.columns WHERE table_schema = 'kvrun' AND"
                                 f" table_name = '{table}' AND column_name = 'id'") == "bytea"

    def outage(self, how):
        sessions_before = len(self.ids("session"))
        load = Load(self.server, self.token)
        try:
            rig.wait_for("the load", lambda: len(load.good_at) > 20)
            pace = max(later - earlier for earlier, later in zip(load.good_at, load.good_at[1:]))
            self.postgres.stop(how)
            gone = time.monotonic()
            while time.monotonic() - gone < OUTAGE:
                self.assertEqual(self.server.call("GET", "/livez").status, 200)
                time.sleep(0.2)
            self.assertTrue(load.refusals)
            self.postgres.start()
            back = time.monotonic()
            first = rig.wait_for("the first success", lambda: [at for at in load.good_at if at > gone + 1][:1])[0]
            self.assertLess(first - back, HEALS_WITHIN + 4 * pace)  # a busy machine takes its time for everything
        finally:
            load.end()
        self.assertEqual(load.strange, [])
        for answer in load.refusals:
            if answer.status == 503:
                self.assertIn(answer.code, ("db_unavailable", "lease_expired", "busy"), answer)
                self.assertGreaterEqual(int(answer.headers["retry-after"]), 1)
                self.assertTrue(answer.json()["retryable"])
        self.wait_ready()
        self.what_was_told_is_what_there_is(load, sessions_before)

    def what_was_told_is_what_there_is(self, load, sessions_before):
        made = self.postgres.sql("SELECT name FROM kvrun.tenant WHERE name LIKE 't-%'").split()
        self.assertEqual(len(made), len(set(made)))
        self.assertLessEqual(set(load.tenants), set(made), "told, and not there")
        self.assertEqual(len(self.ids("session")) - sessions_before, len(load.sessions), "once each")
        for told in list(load.sessions.values())[:20]:
            answer = self.server.patient("GET", f"/v1/sessions/{told}", self.token)
            self.assertEqual(answer.status, 200)

    def test_stop_and_start_under_load(self):
        self.outage(signal.SIGINT)

    def test_crash_and_start_under_load(self):
        self.outage(signal.SIGQUIT)

    def test_connections_that_are_cut_are_hardly_noticed(self):
        load = Load(self.server, self.token)
        try:
            for _ in range(5):
                good = len(load.good_at)
                self.postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE"
                                  " 'kvrun/%'")
                rig.wait_for("work that goes on", lambda: len(load.good_at) > good + 5)
        finally:
            load.end()
        self.assertEqual(load.strange, [])
        self.wait_ready()


class Listener(unittest.TestCase):
    """With a lease of a minute a renewal comes every 20 s: what is seen earlier was heard."""

    @classmethod
    def setUpClass(cls):
        cls.postgres = postgres.Postgres()
        cls.server = rig.Server(f"--db.url={cls.postgres.url}", "--instance.lease=60s", "--rate.default=0")
        cls.tenant = cls.server.tenant("heard")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.server.remove()
        cls.postgres.remove()

    def revoked_within(self, seconds):
        """Another instance revokes a key that this one knows."""
        token = self.server.key(self.tenant, "tenant_admin")
        path = f"/v1/tenants/{self.tenant}"
        self.assertEqual(self.server.call("GET", path, token).status, 200)
        self.postgres.sql("BEGIN; UPDATE kvrun.api_key SET revoked_at = now() WHERE kid ="
                          f" '{token.split('_')[2]}'; UPDATE kvrun.change_head SET seq = seq + 1;"
                          " SELECT pg_notify('kvrun', seq::text) FROM kvrun.change_head; COMMIT")
        rig.wait_for("a refusal", lambda: self.server.call("GET", path, token).status == 401, seconds)

    def listener(self):
        return rig.wait_for("the listener", lambda: self.postgres.sql(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'kvrun/listener' AND query LIKE 'LISTEN%'"))

    def test_changes_are_heard(self):
        self.listener()
        self.revoked_within(2)

    def test_a_listener_that_is_cut_off_hears_again(self):
        before = self.listener()
        self.postgres.sql(f"SELECT pg_terminate_backend({before})")
        self.revoked_within(2)
        rig.wait_for("another listener", lambda: self.listener() != before)
        self.revoked_within(2)

    def test_a_listener_in_a_black_hole_is_found_out(self):
        """Nobody says good-bye, nothing arrives any more."""
        stopped = int(self.listener())
        os.kill(stopped, signal.SIGSTOP)
        try:
            rig.wait_for("another listener", lambda: self.others(stopped))
            self.revoked_within(2)
        finally:
            os.kill(stopped, signal.SIGCONT)

    def others(self, stopped):
        return self.postgres.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'kvrun/listener'"
                                 f" AND query LIKE 'LISTEN%' AND pid <> {stopped}")


class FullDisk(unittest.TestCase):
    """PostgreSQL says 53100 as it does when its disk is full; it is not gone."""

    def test_it_is_said_and_nothing_is_taken_for_lost(self):
        database = postgres.Postgres()
        self.addCleanup(database.remove)
        server = rig.Server(f"--db.url={database.url}", "--rate.default=0")
        self.addCleanup(server.remove)
        tenant = server.tenant("room")
        token = server.key(tenant, "engine")
        engine = Engine(server, token).open_pool()
        session = server.session(token)
        engine.fill(0, "page")
        self.assertEqual(rig.wait_for("the block", lambda: answered(engine.offload(session, ["a"], [0]))).status, 200)
        database.sql("CREATE FUNCTION kvrun.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION"
                     " 'could not extend file' USING ERRCODE = '53100'; END $$;"
                     "CREATE TRIGGER full_disk BEFORE INSERT ON kvrun.tenant EXECUTE FUNCTION kvrun.full()")
        answer = server.call("POST", "/v1/tenants", server.operator, {"name": "no-room"})
        self.assertEqual((answer.status, answer.code), (507, "db_full"), answer)
        self.assertTrue(answer.json()["retryable"])
        self.assertIn("disk is full", answer.json()["detail"])
        self.assertFalse([line for line in server.log if "database_lost" in line or "database-lost" in line])
        self.assertEqual(server.call("GET", f"/v1/tenants/{tenant}", server.operator).status, 200)
        self.assertEqual(engine.restore(session, ["a"], [1]).status, 200)
        database.sql("DROP TRIGGER full_disk ON kvrun.tenant")
        self.assertEqual(server.call("POST", "/v1/tenants", server.operator, {"name": "no-room"}).status, 201)


if __name__ == "__main__":
    rig.main(__name__)
