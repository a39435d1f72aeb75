"""Erasures of one and of many: scopes, dry runs, groups, who may, what is kept, kill and start in the middle."""
import datetime
import pathlib
import re
import signal

import rig
from engine import Engine

E26 = "0" * 26


def utc(**ago):
    return (datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(**ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Base(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("erasing")
        cls.admin = cls.server.key(cls.tenant, "tenant_admin")
        cls.token = cls.server.key(cls.tenant, "engine")
        cls.auditor = cls.server.key(cls.tenant, "auditor")

    def session(self, token=None, **members):
        answer = self.server.patient("POST", "/v1/sessions", token or self.admin,
                                     {"model": {"id": "m", "revision": "r"}, **members})
        self.assertEqual(answer.status, 201, answer)
        return answer.json()["id"]

    def erase(self, scope, token=None, wait=30, query="", headers=None, **members):
        headers = {**({"Prefer": f"wait={wait}"} if wait else {}), **(headers or {})}
        return self.server.call("POST", "/v1/erasures" + query, token or self.admin, {"scope": scope, **members}, headers)

    def state(self, session):
        return self.server.call("GET", f"/v1/sessions/{session}", self.admin).status

    def members(self, group, token=None):
        found, path = [], f"/v1/erasures?group_id={group}&limit=200"
        while path:
            page = self.server.call("GET", path, token or self.admin).json()
            found += page["data"]
            cursor = page["next_cursor"]
            path = cursor and f"/v1/erasures?group_id={group}&limit=200&cursor={cursor}"
        return found


class One(Base):
    def test_by_external_id_and_it_is_free_again(self):
        session = self.session(external_id="user 4711")
        answer = self.erase({"external_id": "user 4711"})
        self.assertEqual((answer.status, answer.json()["session_id"]), (200, session), answer)
        self.assertEqual(self.erase({"external_id": "user 4711"}).status, 404)
        self.assertNotEqual(self.session(external_id="user 4711"), session)

    def test_a_second_request_is_answered_with_the_first_one(self):
        session = self.session()
        first, second = self.erase({"session_id": session}), self.erase({"session_id": session}, basis="contract")
        self.assertEqual(first.json()["id"], second.json()["id"])
        self.assertEqual(first.json()["certificate_id"], second.json()["certificate_id"])

    def test_links_lead_somewhere(self):
        links = self.erase({"session_id": self.session()}).json()["links"]
        self.assertEqual(self.server.call("GET", links["self"], self.admin).status, 200)
        self.assertEqual(self.server.call("GET", links["certificate"], self.admin).status, 200)
        self.assertEqual(self.server.call("GET", links["session"], self.admin).status, 410)

    def test_a_scope_names_exactly_one_thing(self):
        session = self.session()
        for scope in ({}, {"session_id": session, "external_id": "x"}, {"label": {}}, {"label": {"a": "b", "c": "d"}},
                      {"label": {"a": 1}}, {"label": {"a": "x" * 129}}, {"label": {"a" * 64: "x"}}, {"idle_before": "now"},
                      {"idle_before": "2026-11-30"}, {"tenant_id": "ses_" + E26}, {"external_id": ""}, {"all": True}):
            answer = self.erase(scope)
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), scope)
        self.assertEqual(self.state(session), 200)

    def test_an_engine_key_erases_only_its_own(self):
        mine, theirs = self.session(self.token), self.session()
        self.assertEqual(self.erase({"session_id": theirs}, self.token).code, "forbidden")
        self.assertEqual(self.erase({"session_id": mine}, self.token).status, 200)
        self.assertEqual(self.erase({"tenant_id": self.tenant}, self.token).code, "forbidden")
        self.assertEqual(self.state(theirs), 200)

    def test_an_idempotency_key_is_kept_for_ever(self):
        session, other = self.session(), self.session()
        key = {"Idempotency-Key": "erase-1"}
        first = self.erase({"session_id": session}, wait=0, headers=key)
        again = self.erase({"session_id": session}, wait=0, headers=key)
        self.assertEqual((first.status, first.body), (again.status, again.body))
        self.assertEqual(again.headers["idempotency-replayed"], "true")
        self.assertEqual(self.erase({"session_id": other}, headers=key).code, "idempotency_mismatch")
        self.assertEqual(self.state(other), 200)
        kept = self.server.database("SELECT count(*) FROM kvrun.idempotency WHERE key = 'erase-1' AND expires_at IS NULL")
        self.assertIn(kept and kept.strip(), (None, "1"))

    def test_reason_and_reference_are_kept_as_hashes_only(self):
        answer = self.erase({"session_id": self.session()}, reason="a very telling reason", reference="TICKET-99")
        self.assertEqual(answer.status, 200, answer)
        self.assertNotIn(b"telling", answer.body)
        row = self.server.database("SELECT reason_sha256, reference_sha256, e::text FROM kvrun.erasure e WHERE"
                                   " reference_sha256 IS NOT NULL")
        if row is not None:
            self.assertRegex(row, r"^[0-9a-f]{64}\|[0-9a-f]{64}\|")
            self.assertNotIn("telling", row)
            self.assertNotIn("TICKET", row)

    def test_it_cannot_be_called_back(self):
        erasure = self.erase({"session_id": self.session()}).json()["id"]
        answer = self.server.call("POST", f"/v1/erasures/{erasure}:cancel", self.admin)
        self.assertEqual((answer.status, answer.code), (409, "irreversible"))
        self.assertEqual(self.server.call("POST", f"/v1/erasures/era_{E26}:cancel", self.admin).status, 404)

    def test_a_dry_run_says_what_would_be_and_does_nothing(self):
        engine = Engine(self.server, self.token).open_pool()
        session = self.server.session(self.token)
        for slot in range(3):
            engine.fill(slot, f"dry {slot}")
        self.assertEqual(engine.offload(session, ["d0", "d1", "d2"], range(3)).status, 200)
        answer = self.erase({"session_id": session}, query="?dry_run=true", headers={"Idempotency-Key": "dry"})
        would = answer.json()["would"]
        self.assertEqual((answer.status, would["sessions"], would["sessions_measured"]), (200, 1, 1), answer)
        self.assertEqual(would["blocks_by_tier"]["dram"], 3)
        self.assertGreater(would["bytes_by_tier"]["dram"], 0)
        self.assertIn(engine.id, would["engines_to_fence"])
        self.assertIn("L4", would["limits_that_would_apply"])
        self.assertEqual((self.state(session), engine.lookup(session, ["d0"]).status), (200, 200))
        real = self.erase({"session_id": session}, headers={"Idempotency-Key": "dry"})
        self.assertEqual((real.status, real.json()["state"]), (200, "certified"), "a dry run takes no key")
        again = self.erase({"session_id": session}, query="?dry_run=true").json()["would"]
        self.assertEqual((again["sessions"], again["existing_erasure_id"]), (0, real.json()["id"]))

    def test_the_list_has_filters_and_pages(self):
        erasures = [self.erase({"session_id": self.session()}).json() for _ in range(3)]
        page = self.server.call("GET", "/v1/erasures?limit=2&state=certified", self.auditor)
        self.assertEqual([e["id"] for e in page.json()["data"]], [erasures[2]["id"], erasures[1]["id"]])
        cursor = page.json()["next_cursor"]
        more = self.server.call("GET", f"/v1/erasures?limit=2&state=certified&cursor={cursor}", self.auditor).json()
        self.assertEqual(more["data"][0]["id"], erasures[0]["id"])
        of_one = self.server.call("GET", f"/v1/erasures?session_id={erasures[1]['session_id']}", self.admin).json()["data"]
        self.assertEqual([e["id"] for e in of_one], [erasures[1]["id"]])
        self.assertEqual(self.server.call("GET", "/v1/erasures?state=quarantined", self.admin).json()["data"], [])


class Many(Base):
    def group(self, scope, token=None, **how):
        answer = self.erase(scope, token, **how)
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)
        return answer.json()

    def test_by_label(self):
        meant = [self.session(labels={"user": "7", "n": str(i)}) for i in range(3)]
        other = self.session(labels={"user": "8"})
        would = self.erase({"label": {"user": "7"}}, query="?dry_run=true").json()["would"]
        self.assertEqual(would["sessions"], 3)
        group = self.group({"label": {"user": "7"}}, reason="r")
        self.assertEqual(group["sessions"], {"matched": 3, "certified": 3, "quarantined": 0, "complete": True})
        self.assertEqual(group["scope"], {"label": {"user": None}})
        self.assertEqual(sorted(m["session_id"] for m in self.members(group["id"])), sorted(meant))
        for member in self.members(group["id"], self.auditor):
            self.assertEqual((member["state"], member["group_id"]), ("certified", group["id"]))
            self.assertEqual(self.server.call("GET", member["links"]["certificate"], self.admin).status, 200)
        self.assertEqual([self.state(s) for s in meant + [other]], [410, 410, 410, 200])
        self.assertEqual(self.server.call("GET", f"/v1/erasures/{group['id']}/certificate", self.admin).status, 404)
        self.assertEqual(self.erase({"label": {"user": "7"}}).status, 404, "none is left")
        answer = self.server.call("POST", f"/v1/erasures/{group['id']}:cancel", self.admin)
        self.assertEqual(answer.code, "irreversible")

    def test_groups_are_listed_with_single_ones_in_one_order(self):
        tenant = self.server.tenant("listing")
        admin, auditor = self.server.key(tenant, "tenant_admin"), self.server.key(tenant, "auditor")
        asked = []
        for number in range(3):
            single = self.erase({"session_id": self.session(admin)}, admin).json()
            for _ in range(2):
                self.session(admin, labels={"n": str(number)})
            asked += [single["id"], self.group({"label": {"n": str(number)}}, admin)["id"]]

        def pages(query):
            found, cursor = [], ""
            while cursor is not None:
                page = self.server.call("GET", f"/v1/erasures?limit=2{query}{cursor and '&cursor=' + cursor}", auditor)
                self.assertEqual(page.status, 200, page)
                found, cursor = found + page.json()["data"], page.json()["next_cursor"]
            return found
        self.assertEqual([e["id"] for e in pages("&group_id=none&order=asc")], asked)
        self.assertEqual([e["id"] for e in pages("&group_id=none")], asked[::-1])
        everything = pages("&order=asc")
        self.assertEqual(len(everything), len({e["id"] for e in everything}))
        self.assertEqual((len(everything), [e["id"] for e in everything if "group_id" not in e]), (12, asked))
        self.assertEqual(everything, sorted(everything, key=lambda e: (e["requested_at"], e["id"])))
        self.assertEqual([e["id"] for e in pages("&state=certified&order=asc")], [e["id"] for e in everything])
        self.assertEqual(pages("&state=requested"), [])
        group = self.server.call("GET", f"/v1/erasures/{asked[1]}", admin).json()
        self.assertIn(group, everything, "the list and the erasure say the same")
        certificates = self.server.call("GET", group["links"]["certificates"], auditor).json()["data"]
        self.assertEqual(sorted(c["id"] for c in certificates), sorted(m["certificate_id"] for m in self.members(asked[1], admin)))
        tar = self.server.call("GET", f"/v1/certificates:export?group_id={asked[1]}", auditor)
        self.assertEqual((tar.status, len(re.findall(rb"certificates/crt_[0-9a-z]{26}[.]txt", tar.body))), (200, 2))
        for query in ("group_id=some", "group_id=era_0", "group_id="):
            self.assertEqual(self.server.call("GET", f"/v1/erasures?{query}", admin).status, 400, query)
        self.assertEqual(self.server.call("GET", "/v1/certificates?group_id=none", admin).status, 400)

    def test_a_labels_value_is_kept_nowhere(self):
        value = "jane-4711-doe"
        self.session(labels={"user": value})
        answer = self.erase({"label": {"user": value}}, headers={"Idempotency-Key": "by-label"})
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)
        self.assertNotIn(value, answer.body.decode())
        kept = self.server.database("SELECT string_agg(convert_from(body, 'UTF8'), ' ') FROM kvrun.idempotency WHERE"
                                    " key = 'by-label'")
        groups = self.server.database("SELECT string_agg(g::text, ' ') FROM kvrun.erasure_group g")
        if kept is None:
            self.skipTest("psql is not there")
        self.assertIn("label", kept)
        self.assertIn("label", groups)
        self.assertNotIn(value, kept + groups)

    def test_by_idleness_and_pins_are_respected(self):
        idle, pinned = self.session(labels={"t": "idle"}), self.session(labels={"t": "idle"})
        answer = self.server.call("POST", f"/v1/sessions/{pinned}:pin", self.admin, {"until": utc(hours=-1)})
        self.assertEqual(answer.status, 200, answer)
        now = utc(seconds=-1)
        self.assertEqual(self.erase({"idle_before": utc(days=1)}).status, 404)
        ahead = self.erase({"idle_before": utc(seconds=-90)})
        self.assertEqual((ahead.status, ahead.pointer), (400, "/scope/idle_before"), ahead)
        self.group({"idle_before": now})
        self.assertEqual([self.state(s) for s in (idle, pinned)], [410, 200])

    def test_an_engine_keys_group_means_its_own_sessions(self):
        mine, theirs = self.session(self.token, labels={"g": "1"}), self.session(labels={"g": "1"})
        self.group({"label": {"g": "1"}}, self.token)
        self.assertEqual([self.state(s) for s in (mine, theirs)], [410, 200])

    def test_all_of_a_tenant_and_only_its_own(self):
        other = self.server.tenant("beside")
        key = self.server.key(other, "tenant_admin")
        mine = [self.server.session(key) for _ in range(2)]
        theirs = self.session()
        self.assertEqual(self.erase({"tenant_id": self.tenant}, key).status, 404)
        one = self.erase({"tenant_id": other}, key).json()
        self.assertEqual((one["state"], one["scope"]), ("certified", {"tenant_id": other}))
        self.assertEqual(one["sessions"], {"matched": 2, "certified": 2, "quarantined": 0, "complete": True})
        self.assertNotIn("members", one["links"])
        self.assertEqual(self.server.call("GET", f"/v1/erasures?group_id={one['id']}", key).json()["data"], [])
        certificate = self.server.call("GET", one["links"]["certificate"], key).json()
        self.assertEqual((certificate["id"], certificate["tenant_id"], certificate["sessions"]),
                         (one["certificate_id"], other, 2))
        self.assertEqual(certificate["certificate"]["sub"]["kind"], "tenant")
        self.assertEqual([c["id"] for c in self.server.call("GET", "/v1/certificates", key).json()["data"]],
                         [one["certificate_id"]])
        for session in mine:
            gone = self.server.call("GET", f"/v1/sessions/{session}", key)
            self.assertEqual(gone.status, 410)
            self.assertIn(one["id"], str(gone.json()))
            listed = self.server.call("GET", f"/v1/erasures?session_id={session}", key).json()["data"]
            self.assertEqual([e["id"] for e in listed], [one["id"]])
            again = self.erase({"session_id": session}, key)
            self.assertEqual((again.status, again.json()["id"]), (200, one["id"]))
        self.assertEqual(self.server.call("GET", f"/v1/erasures/{one['id']}", self.admin).status, 404)
        self.assertEqual(self.state(theirs), 200)
        self.assertEqual([self.server.call("GET", f"/v1/sessions/{s}", key).status for s in mine], [410, 410])
        self.assertEqual(self.server.call("GET", f"/v1/sessions/{self.server.session(key)}", key).status, 200)

    def test_a_session_made_after_the_request_is_not_meant(self):
        self.session(labels={"late": "1"})
        group = self.erase({"label": {"late": "1"}}, wait=0)
        late = self.session(labels={"late": "1"})
        rig.wait_for("the group's end", lambda: self.server.call("GET", group.headers["location"], self.admin,
                                                                 headers={"Prefer": "wait=5"}).json()["state"] == "certified")
        self.assertEqual(self.state(late), 200)


class Expanding(Base):
    """More sessions than the request takes on; killed at each step between taking on and the end."""
    server_options = ("--rate.default=0", "--rate.erase=1000000")

    def test_goes_on_after_a_kill_at_each_step(self):
        for number, fault in enumerate(("store/erase-group/committed=kill@1", "erase/group-requested=kill@1",
                                        "store/erase-group-step/commit=kill@1", "store/erase-group-step/committed=kill@1",
                                        "erase/group-step=kill@2")):
            label = {"k": str(number)}
            sessions = [self.session(labels=label) for _ in range(3)]
            self.server.stop()
            self.server.start(KVRUN_FAULT=fault)
            try:
                self.erase({"label": label}, wait=0)
            except OSError:
                pass
            try:
                code = self.server.process.wait(60)
            except Exception:
                self.skipTest("this binary has no fault points")
            self.assertEqual(code, -signal.SIGKILL, fault)
            self.server.stop()
            self.server.start()
            groups = rig.wait_for("the group", lambda: self.server.call("GET", "/v1/erasures?limit=1", self.admin).json()["data"])
            where = groups[0]["links"]["group"]
            rig.wait_for("its end", lambda: self.server.call("GET", where, self.admin).json()["state"] == "certified")
            self.assertEqual([self.state(s) for s in sessions], [410] * 3, fault)
            self.assertEqual(self.server.call("GET", where, self.admin).json()["sessions"]["certified"], 3)

    def test_takes_on_more_than_one_step_holds(self):
        limit = int(re.search(r"ERASURE_EXPAND,\s*(\d+)", pathlib.Path(rig.options.source, "api/limits.def").read_text())[1])
        label = {"many": "1"}
        for _ in range(limit + 2):
            self.session(labels=label)
        answer = self.erase({"label": label}, wait=0)
        self.assertEqual(answer.json()["sessions"]["complete"], False)
        self.assertEqual(answer.json()["sessions"]["matched"], limit)
        end = rig.wait_for("the end", lambda: (lambda e: e if e["state"] == "certified" else None)(
            self.server.call("GET", answer.headers["location"], self.admin).json()), 400)
        self.assertEqual(end["sessions"], {"matched": limit + 2, "certified": limit + 2, "quarantined": 0, "complete": True})
        self.assertEqual(len(self.members(end["id"])), limit + 2)


if __name__ == "__main__":
    rig.main(__name__)
