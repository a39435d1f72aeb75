"""Sessions: their clients' own ids and labels, lifetimes, lists; what is left in the database after an erasure."""
import concurrent.futures
import datetime
import urllib.parse

import rig
from engine import Engine

PATCH = {"Content-Type": "application/merge-patch+json"}
MODEL = {"id": "m", "revision": "r"}


def ahead(**how):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(**how)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Sessions(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant, cls.other = cls.server.tenant("ours"), cls.server.tenant("theirs")
        cls.admin, cls.engine = cls.server.key(cls.tenant, "tenant_admin"), cls.server.key(cls.tenant, "engine")
        cls.stranger = cls.server.key(cls.other, "tenant_admin")

    def call(self, method, path, body=None, token=None, headers=None):
        kind = PATCH if method == "PATCH" else {}
        return self.server.call(method, path, token or self.admin, body, {**kind, **(headers or {})})

    def make(self, status=201, token=None, **members):
        answer = self.call("POST", "/v1/sessions", {"model": MODEL, **members}, token)
        self.assertEqual(answer.status, status, answer)
        return answer.json()

    def get(self, session):
        return self.call("GET", f"/v1/sessions/{session}").json()

    def find(self, external_id, token=None):
        answer = self.call("GET", "/v1/sessions?external_id=" + urllib.parse.quote(external_id, safe=""), token=token)
        self.assertEqual(answer.status, 200, answer)
        return [session["id"] for session in answer.json()["data"]]

    def erase(self, session):
        answer = self.call("POST", "/v1/erasures", {"scope": {"session_id": session}}, headers={"Prefer": "wait=30"})
        self.assertEqual(answer.status, 200, answer)

    # --- clients' own ids

    def test_any_text_is_an_external_id(self):
        for name in ("_default", "a/b", "..", "😀", "e\u0301", "ses_" + "0" * 26, " ", "%00", "\u0000x"[1:], "'; drop table session; --",
                     "x" * 256, "ä" * 128):
            made = self.make(external_id=name)
            self.assertNotIn("external_id", made, "the answer may be kept")
            self.assertEqual(self.get(made["id"])["external_id"], name)
            self.assertEqual(self.find(name), [made["id"]])
            self.assertEqual(self.make(200, external_id=name)["id"], made["id"])
        for bad in ("", "x" * 257, "ä" * 129, 5, None):
            answer = self.call("POST", "/v1/sessions", {"model": MODEL, "external_id": bad})
            self.assertEqual((answer.status, answer.pointer), (400, "/external_id"), bad)
        self.assertEqual(self.find("never"), [])
        self.assertEqual(self.call("GET", "/v1/sessions?external_id=" + "x" * 257).status, 400)

    def test_one_name_asked_for_by_many_at_once_is_one_session(self):
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda _: self.server.patient("POST", "/v1/sessions", self.engine,
                                                                  {"model": MODEL, "external_id": "crowd"}), range(32)))
        self.assertEqual({answer.status for answer in answers}, {200, 201})
        self.assertEqual(sum(answer.status == 201 for answer in answers), 1)
        self.assertEqual(len({answer.json()["id"] for answer in answers}), 1)

    def test_names_belong_to_their_tenant(self):
        ours = self.make(external_id="shared name")["id"]
        theirs = self.make(external_id="shared name", token=self.stranger)["id"]
        self.assertNotEqual(ours, theirs)
        self.assertEqual(self.find("shared name"), [ours])
        self.assertEqual(self.find("shared name", self.stranger), [theirs])

    def test_a_name_survives_a_restart(self):
        session = self.make(external_id="long-lived")["id"]
        self.assertEqual(self.server.stop(), 0)
        self.server.start()
        self.assertEqual(self.make(200, external_id="long-lived")["id"], session)
        self.assertEqual(self.get(session)["external_id"], "long-lived")

    def test_a_name_survives_the_erasure_of_another_session(self):
        session = self.make(external_id="bystander")["id"]
        self.erase(self.make(external_id="goer")["id"])
        self.assertEqual(self.find("bystander"), [session])
        self.assertEqual(self.get(session)["external_id"], "bystander")

    def plain_text(self, *words):
        """Tables whose rows hold one of the words, in text or in bytes."""
        names = self.server.database("select table_name from information_schema.tables where table_schema = 'kvrun'"
                                     " and table_type = 'BASE TABLE'")
        if names is None:
            self.skipTest("psql is not installed")
        found = []
        for table in names.split():
            rows = self.server.database(f"select t::text from kvrun.{table} t")
            for word in words:
                if word in rows or word.encode().hex() in rows:
                    found.append((table, word))
        return found

    def test_erasing_leaves_neither_name_nor_labels(self):
        name, label = "erika-mustermann-4711", "label-of-erika"
        key = {"Idempotency-Key": "erika"}
        made = self.call("POST", "/v1/sessions", {"model": MODEL, "external_id": name, "labels": {"user": label}}, headers=key)
        self.assertEqual(made.status, 201)
        session = made.json()["id"]
        self.assertEqual(self.plain_text(name), [], "never in plain text")
        self.assertEqual(self.plain_text(label), [("session", label)], "the control: labels are there while it lives")
        self.erase(session)
        self.assertEqual(self.plain_text(name, label), [])
        self.assertEqual(self.find(name), [])
        self.assertNotEqual(self.make(external_id=name)["id"], session, "the name is free again")
        gone = self.call("GET", f"/v1/sessions/{session}?expand=erasure").json()
        self.assertEqual((gone["state"], "labels" in gone, "external_id" in gone), ("erased", False, False))
        self.assertEqual(self.call("GET", gone["erasure"]["self"]).status, 200)
        self.assertEqual(self.call("GET", f"/v1/sessions/{session}").status, 410)

    # --- lists

    def test_a_list_is_narrowed_and_goes_in_pages(self):
        made = [self.make(labels={"list": "yes", "n": str(i)}, external_id=f"listed-{i}")["id"] for i in range(7)]
        seen, cursor = [], ""
        while cursor is not None:
            page = self.call("GET", f"/v1/sessions?label=list:yes&limit=3&order=asc{cursor}")
            self.assertEqual(page.status, 200, page)
            seen += [(session["id"], session["external_id"]) for session in page.json()["data"]]
            cursor = page.json()["next_cursor"] and "&cursor=" + page.json()["next_cursor"]
        self.assertEqual(seen, [(session, f"listed-{i}") for i, session in enumerate(made)])
        one = self.call("GET", "/v1/sessions?label=n:3&label=list:yes")
        self.assertEqual(one.status, 400, "a parameter twice")
        self.assertEqual(self.call("GET", "/v1/sessions?label=list:no").json()["data"], [])
        after = urllib.parse.quote(self.get(made[3])["created_at"])
        later = self.call("GET", f"/v1/sessions?label=list:yes&created_after={after}&order=asc").json()["data"]
        self.assertEqual([session["id"] for session in later], made[4:])
        self.assertEqual(self.call("GET", "/v1/sessions?model=nobody").json()["data"], [])
        self.assertEqual(self.call("GET", "/v1/sessions?created_after=yesterday").status, 400)

    def test_idle_ones_are_found(self):
        session = self.make(labels={"idle": "yes"})["id"]
        query = "/v1/sessions?label=idle:yes&idle_before="
        self.assertEqual(self.call("GET", query + "2020-01-01T00:00:00Z").json()["data"], [])
        self.assertEqual([s["id"] for s in self.call("GET", query + ahead(hours=1)).json()["data"]], [session])

    def test_one_used_since_as_only_memory_knows_is_not_among_them(self):
        used, idle = (self.make(labels={"idle": "memory"})["id"] for _ in range(2))
        query = "/v1/sessions?label=idle:memory&idle_before="
        self.call("POST", f"/v1/sessions/{used}:touch")  # the row knows of a use just now: the next is noted in memory alone
        engine = Engine(self.server, self.engine, name="memory").open_pool().beat()
        engine.fill(0, "x")
        before = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.assertEqual(engine.offload(used, ["x"], [0]).status, 200)
        self.assertEqual([s["id"] for s in self.call("GET", query + before).json()["data"]], [idle])
        self.assertEqual({s["id"] for s in self.call("GET", query + ahead(hours=1)).json()["data"]}, {used, idle})

    # --- changes

    def test_a_lifetime_gets_shorter_only(self):
        session = self.make(ttl_seconds=3600, idle_ttl_seconds=600)
        path = f"/v1/sessions/{session['id']}"
        for patch in ({"ttl_seconds": 7200}, {"ttl_seconds": None}, {"idle_ttl_seconds": 601}, {"idle_ttl_seconds": None}):
            answer = self.call("PATCH", path, patch)
            self.assertEqual((answer.status, answer.code), (403, "ceiling"), patch)
        shorter = self.call("PATCH", path, {"ttl_seconds": 60, "idle_ttl_seconds": 30, "labels": {"a": "b"}}).json()
        self.assertLess(shorter["expires_at"], session["expires_at"])
        self.assertEqual((shorter["idle_ttl_seconds"], shorter["labels"]), (30, {"a": "b"}))
        for patch in ({"external_id": "x"}, {"model": MODEL}, {"class": "x"}, {"region": "x"}):
            self.assertEqual(self.call("PATCH", path, patch).code, "immutable_field", patch)
        for patch in ({}, {"ttl_seconds": 0}, {"ttl_seconds": 31536001}, {"nothing": 1}):
            self.assertEqual(self.call("PATCH", path, patch).status, 400, patch)
        self.assertEqual(self.call("PATCH", path, {"labels": {"a": None}}, headers={"If-Match": '"1.0000000000000000"'}).status, 412)

    def test_a_touch_moves_the_idle_time(self):
        session = self.make(idle_ttl_seconds=600)
        touched = self.call("POST", f"/v1/sessions/{session['id']}:touch", token=self.engine).json()
        self.assertGreater(touched["idle_at"], session["idle_at"])
        self.assertIn("last_used_at", touched)

    def test_a_pin_lasts_as_long_as_the_session_at_most(self):
        path = f"/v1/sessions/{self.make(ttl_seconds=3600)['id']}"
        pinned = self.call("POST", f"{path}:pin", {"until": ahead(seconds=1800)})
        self.assertEqual((pinned.status, "pinned_until" in pinned.json()), (200, True), pinned)
        self.assertEqual(self.call("POST", f"{path}:pin", {"until": ahead(hours=2)}).code, "ceiling")
        for until in (ahead(seconds=-1), ahead(days=31), "soon", 5):
            self.assertEqual(self.call("POST", f"{path}:pin", {"until": until}).status, 400, until)
        self.assertNotIn("pinned_until", self.call("POST", f"{path}:unpin").json())

    def test_a_read_right_after_a_change_shows_it(self):
        session = self.make(ttl_seconds=3600, idle_ttl_seconds=600)["id"]
        path = f"/v1/sessions/{session}"

        def read(query=""):
            return self.call("GET", path + query)

        for turn in range(20):
            for _ in range(3):
                read()
            self.assertEqual(self.call("PATCH", path, {"labels": {"turn": str(turn)}}).status, 200)
            self.assertEqual(read().json()["labels"], {"turn": str(turn)})
            touched = self.call("POST", f"{path}:touch").json()
            self.assertEqual(read("?expand=usage").json()["last_used_at"], touched["last_used_at"])
            until = self.call("POST", f"{path}:pin", {"until": ahead(seconds=600 + turn)}).json()["pinned_until"]
            again = read()
            self.assertEqual(again.json()["pinned_until"], until)
            self.assertEqual(self.call("POST", f"{path}:unpin", headers={"If-Match": again.headers["etag"]}).status, 200)
            self.assertNotIn("pinned_until", read().json())
        etag = read().headers["etag"]
        self.assertEqual(self.call("GET", path, headers={"If-None-Match": etag}).status, 304)
        self.assertEqual(self.call("GET", path, token=self.stranger).status, 404)
        self.assertNotIn("usage", read("?expand=erasure").json())
        self.assertEqual(self.call("DELETE", path).status, 202)
        self.assertEqual(read().status, 410)
        self.assertEqual(read("?expand=erasure").status, 200)

    def test_a_revoked_key_reads_nothing_from_memory(self):
        made = self.server.call("POST", f"/v1/tenants/{self.tenant}/api-keys", self.server.operator,
                                {"name": "short-lived", "roles": ["tenant_admin"]}).json()
        path = f"/v1/sessions/{self.make()['id']}"
        for _ in range(3):
            self.assertEqual(self.call("GET", path, token=made["secret"]).status, 200)
        gone = self.server.call("DELETE", f"/v1/tenants/{self.tenant}/api-keys/{made['id']}", self.server.operator)
        self.assertIn(gone.status, (200, 204))
        self.assertEqual(self.call("GET", path, token=made["secret"]).status, 401)
        self.assertEqual(self.call("GET", path).status, 200, "the control")

    def test_a_session_explains_itself(self):
        session = self.make(external_id="asked", labels={"a": "secret word"})["id"]
        for token in (self.admin, self.server.operator):
            answer = self.call("POST", f"/v1/sessions/{session}:explain", token=token)
            self.assertEqual(answer.status, 200, answer)
            self.assertEqual([d["allowed"] for d in answer.json()["decisions"]], [True, True])
            self.assertNotIn("secret word", answer.body.decode())
            self.assertNotIn("asked", answer.body.decode())

    def test_a_transfer_is_a_use(self):
        engine = Engine(self.server, self.engine).open_pool()
        session = self.make()["id"]
        self.assertNotIn("last_used_at", self.get(session))
        body = {"session_id": session, "pool_id": engine.pool, "hashes": ["00" * 32]}
        self.assertEqual(self.call("POST", "/v1/lookups", body, self.engine).status, 200)
        rig.wait_for("the janitor", lambda: self.get(session).get("last_used_at"))

    def test_deleting_is_erasing(self):
        session = self.make(external_id="to be deleted")["id"]
        would = self.call("DELETE", f"/v1/sessions/{session}?dry_run=true")
        self.assertEqual((would.status, would.json()["would"]["sessions"]), (200, 1), would)
        self.assertEqual(self.call("DELETE", f"/v1/sessions/{session}", token=self.engine).status, 403, "not its own")
        done = self.call("DELETE", f"/v1/sessions/{session}", headers={"Prefer": "wait=30"})
        self.assertEqual((done.status, done.json()["state"]), (200, "certified"), done)
        self.assertEqual(self.call("GET", f"/v1/sessions/{session}").status, 410)
        self.assertEqual(self.call("DELETE", f"/v1/sessions/{session}").json()["id"], done.json()["id"])

    def test_an_end_comes_by_itself(self):
        session = self.make(ttl_seconds=1)["id"]
        gone = rig.wait_for("the janitor", lambda: self.call("GET", f"/v1/sessions/{session}").status == 410)
        self.assertTrue(gone)

    # --- another tenant

    def test_another_tenants_answers_like_one_that_is_not_there(self):
        session, nothing = self.make()["id"], "ses_" + "0" * 26
        for method, tail, body in (("GET", "", None), ("DELETE", "", None), ("PATCH", "", {"labels": {}}), ("POST", ":touch", {}),
                                   ("POST", ":pin", {"until": ahead(hours=1)}), ("POST", ":unpin", {}), ("POST", ":explain", {})):
            answers = [self.call(method, f"/v1/sessions/{id}{tail}", body, self.stranger) for id in (session, nothing)]
            documents = [answer.json() for answer in answers]
            for document in documents:
                del document["request_id"], document["instance"]
            self.assertEqual(answers[0].status, 404, f"{method} {tail}")
            self.assertEqual(documents[0], documents[1], f"{method} {tail}")
        listed = self.call("GET", "/v1/sessions?limit=200", token=self.stranger).json()["data"]
        self.assertNotIn(session, [one["id"] for one in listed])


if __name__ == "__main__":
    rig.main(__name__)
