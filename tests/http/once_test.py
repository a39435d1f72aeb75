"""Idempotency-Key: one effect and one answer, whatever comes twice, at once, or from a server that was killed."""
import collections
import concurrent.futures
import json
import re
import signal
import uuid

import rig

KILLED_AT = ("store/tenant-create/serialize", "store/tenant-create/commit", "store/tenant-create/committed")


class Once(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("once")
        cls.admin = cls.server.key(cls.tenant, "tenant_admin")

    @staticmethod
    def name():
        return "t" + uuid.uuid4().hex[:20]

    def make(self, name, key, body=None, **headers):
        body = {"name": name} if body is None else body
        return self.server.call("POST", "/v1/tenants", self.server.operator, body, {"Idempotency-Key": key, **headers})

    def make_key(self, key, token=None, tenant=None, **members):
        body = {"name": "k", "roles": ["engine"], **members}
        return self.server.call("POST", f"/v1/tenants/{tenant or self.tenant}/api-keys", token or self.server.operator,
                                body, {"Idempotency-Key": key})

    def count(self, name):
        return int(self.server.database(f"SELECT count(*) FROM tenant WHERE name = '{name}'"))

    def assertReplay(self, answer, first):
        self.assertEqual((answer.status, answer.body), (first.status, first.body))
        self.assertEqual(answer.headers["idempotency-replayed"], "true")
        self.assertEqual(answer.headers["idempotency-original-request"], first.headers["x-request-id"])
        self.assertNotEqual(answer.headers["x-request-id"], first.headers["x-request-id"])
        for header in ("location", "etag", "content-type"):
            self.assertEqual(answer.headers.get(header), first.headers.get(header), header)

    # --- the key

    def test_a_repetition_gets_the_first_answer(self):
        name, key = self.name(), str(uuid.uuid4())
        first = self.make(name, key)
        self.assertEqual(first.status, 201)
        self.assertNotIn("idempotency-replayed", first.headers)
        for spelling in (key, f'"{key}"', f"  {key}"):
            self.assertReplay(self.make(name, spelling), first)
        self.assertEqual(self.count(name), 1)
        self.assertEqual(self.server.call("POST", "/v1/tenants", self.server.operator, {"name": name}).code,
                         "tenant_exists", "the control: without the key it is a second request")

    def test_what_is_no_key_is_refused(self):
        for key in ("", '""', '"', '"a', "a b", "a\u00e4", "x" * 256):
            name = self.name()
            answer = self.make(name, key)
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), key)
            self.assertEqual(self.count(name), 0)
        self.assertEqual(self.make(self.name(), (uuid.uuid4().hex * 8)[:255]).status, 201)

    def test_the_header_twice_is_refused(self):
        name = self.name()
        raw = (f"POST /v1/tenants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.server.operator}\r\n"
               "Content-Type: application/json\r\nIdempotency-Key: a\r\nIdempotency-Key: a\r\n"
               f"Content-Length: {len(name) + 11}\r\nConnection: close\r\n\r\n" '{"name":"' + name + '"}')
        self.assertTrue(self.server.raw(raw.encode()).startswith(b"HTTP/1.1 400 "))
        self.assertEqual(self.count(name), 0)

    # --- what it is bound to

    def test_the_same_value_in_other_words_is_the_same_request(self):
        name, key = self.name(), str(uuid.uuid4())
        first = self.make(name, key, {"name": name, "display_name": "\u00e4/x"})
        words = [f'{{"display_name":"\\u00e4\\/x","name":"{name}"}}', f' {{ "name" : "{name}",\n"display_name":"\u00e4/x" }}']
        for text in words:
            self.assertReplay(self.make(name, key, text.encode()), first)

    def test_another_body_is_refused_and_does_nothing(self):
        name, other, key = self.name(), self.name(), str(uuid.uuid4())
        self.make(name, key)
        for body in ({"name": other}, {"name": name, "display_name": "x"}):
            answer = self.make(None, key, body)
            self.assertEqual((answer.status, answer.code), (422, "idempotency_mismatch"))
        self.assertEqual(self.count(other), 0)

    def test_another_path_of_the_same_template_is_another_request(self):
        key, other = str(uuid.uuid4()), self.server.tenant(self.name())
        self.assertEqual(self.make_key(key).status, 201)
        self.assertEqual(self.make_key(key, tenant=other).code, "idempotency_mismatch")

    def test_another_template_and_another_caller_have_keys_of_their_own(self):
        name, key = self.name(), str(uuid.uuid4())
        self.assertEqual(self.make(name, key).status, 201)
        ours, theirs = self.make_key(key), self.make_key(key, self.admin)
        self.assertEqual((ours.status, theirs.status), (201, 201))
        self.assertNotEqual(ours.json()["id"], theirs.json()["id"])
        self.assertNotIn("idempotency-replayed", theirs.headers)

    def test_what_failed_is_not_kept(self):
        name, key = self.name(), str(uuid.uuid4())
        self.assertEqual(self.make("once", key).code, "tenant_exists")
        self.assertEqual(self.make("once", key).code, "tenant_exists")
        self.assertEqual(self.make(None, key, {"name": name, "zzz": 1}).status, 400)
        self.assertEqual(self.make(name, key).status, 201)

    def test_a_dry_run_uses_no_key_up(self):
        name, key = self.name(), str(uuid.uuid4())
        for _ in range(2):
            answer = self.server.call("POST", "/v1/tenants?dry_run=true", self.server.operator, {"name": name},
                                      {"Idempotency-Key": key})
            self.assertEqual((answer.status, answer.json()["dry_run"]), (200, True))
            self.assertNotIn("idempotency-replayed", answer.headers)
        self.assertEqual(self.make(self.name(), key).status, 201)

    def test_it_is_kept_for_a_day(self):
        name, key = self.name(), str(uuid.uuid4())
        self.make(name, key)
        hours = self.server.database("SELECT extract(epoch FROM expires_at - created_at) / 3600 FROM idempotency"
                                     f" WHERE key = '{key}'")
        self.assertEqual(float(hours), 24)
        self.server.database(f"UPDATE idempotency SET expires_at = now() - interval '1 second' WHERE key = '{key}'")
        answer = self.make(self.name(), key)
        self.assertEqual(answer.status, 201)
        self.assertNotIn("idempotency-replayed", answer.headers)

    # --- at once

    def at_once(self, count, send):
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            return list(pool.map(send, range(count)))

    def conflicts(self):
        text = self.server.call("GET", "/metrics", admin=True).body.decode()
        return int(re.search(r'^kvrun_idempotent_replays_total\{outcome="conflict"\} (\d+)', text, re.M).group(1))

    def test_of_64_at_once_one_has_an_effect(self):
        before, told = self.conflicts(), 0
        for _ in range(3):
            name, key = self.name(), str(uuid.uuid4())
            answers = self.at_once(64, lambda _: self.make(name, key))
            made = [a for a in answers if a.status == 201]
            first = [a for a in made if "idempotency-replayed" not in a.headers]
            self.assertEqual(len(first), 1)
            self.assertEqual(len({a.json()["id"] for a in made}), 1)
            rest = {a.code for a in answers if a.status != 201}
            told += sum(a.status == 409 for a in answers)
            self.assertLessEqual(rest, {"idempotency_in_progress"}, collections.Counter(a.status for a in answers))
            self.assertEqual(self.count(name), 1)
            self.assertEqual(self.server.database(f"SELECT count(*) FROM idempotency WHERE key = '{key}'").strip(), "1")
            self.assertReplay(self.make(name, key), first[0])
        self.assertEqual(self.conflicts() - before, told)

    def test_of_different_requests_at_once_one_wins_and_the_others_are_told(self):
        for _ in range(3):
            names, key = [self.name() for _ in range(8)], str(uuid.uuid4())
            answers = self.at_once(32, lambda i: (names[i % 8], self.make(names[i % 8], key)))
            winners = {name for name, answer in answers if answer.status == 201}
            self.assertEqual(len(winners), 1)
            for name, answer in answers:
                if name in winners:
                    self.assertIn((answer.status, answer.json().get("code")),
                                  ((201, None), (409, "idempotency_in_progress"), (422, "idempotency_mismatch")))
                else:
                    self.assertIn(answer.code, ("idempotency_mismatch", "idempotency_in_progress"))
            self.assertEqual([self.count(name) for name in names].count(1), 1)
            for name in names:  # afterwards there is one truth
                answer = self.make(name, key)
                self.assertEqual(answer.status, 201 if name in winners else 422)

    def test_keys_that_differ_run_beside_each_other(self):
        names = [self.name() for _ in range(16)]
        answers = self.at_once(16, lambda i: self.make(names[i], str(uuid.uuid4())))
        self.assertEqual({a.status for a in answers}, {201})

    # --- secrets

    def test_a_secret_is_repeated_and_never_written(self):
        key = str(uuid.uuid4())
        first = self.make_key(key)
        again = self.make_key(key)
        self.assertReplay(again, first)
        self.assertEqual(again.json()["secret"], first.json()["secret"])
        self.assertEqual(self.server.call("GET", f"/v1/tenants/{self.tenant}", first.json()["secret"]).status, 403)
        row = self.server.database(f"SELECT body IS NULL FROM idempotency WHERE key = '{key}'").strip()
        self.assertEqual(row, "t")


class AfterTheEnd(rig.Suite):
    """Servers that end in between; each test starts and ends them as it needs."""

    def make(self, name, key):
        return self.server.call("POST", "/v1/tenants", self.server.operator, {"name": name},
                                {"Idempotency-Key": key})

    def test_a_kept_answer_outlives_the_server_and_a_secret_does_not(self):
        tenant = self.make("stays", "first")
        path, body, once = f"/v1/tenants/{tenant.json()['id']}/api-keys", {"name": "k", "roles": ["engine"]}, \
            {"Idempotency-Key": "second"}
        made = self.server.call("POST", path, self.server.operator, body, once)
        self.assertEqual(made.status, 201)
        self.server.stop()
        self.server.start()
        again = self.make("stays", "first")
        self.assertEqual((again.status, again.body), (201, tenant.body))
        shown = self.server.call("POST", path, self.server.operator, body, once)
        self.assertEqual((shown.status, shown.code), (409, "secret_shown"))
        self.assertTrue(shown.headers["location"].endswith(made.json()["id"]))
        self.assertNotIn(made.json()["secret"], shown.body.decode())
        self.assertIn("hint", shown.json())
        self.assertEqual(self.server.database("SELECT count(*) FROM api_key WHERE name = 'k'").strip(), "1")

    def test_killed_at_any_step_the_repetition_succeeds_once(self):
        for index, point in enumerate(KILLED_AT):
            name, key = f"killed-{index}", f"key-{index}"
            self.server.stop()
            self.server.start(KVRUN_FAULT=f"{point}=kill")
            try:
                answer = self.make(name, key)
            except OSError:
                answer = None
            if answer is not None:
                self.skipTest("this build has no fault points")
            self.assertEqual(self.server.process.wait(30), -signal.SIGKILL, point)
            self.server.stop()
            self.server.start()
            answer = self.make(name, key)
            self.assertEqual(answer.status, 201, f"{point} {answer}")
            self.assertEqual("idempotency-replayed" in answer.headers, point.endswith("committed"), point)
            rows = self.server.database(f"SELECT count(*) FROM tenant WHERE name = '{name}'").strip()
            self.assertEqual(rows, "1", point)
            self.assertEqual(json.loads(self.make(name, key).body), answer.json())


class Required(rig.Suite):
    server_options = ("--http.require_idempotency_key=true",)

    def test_a_request_without_a_key_is_refused_where_one_can_be_sent(self):
        answer = self.server.call("POST", "/v1/tenants", self.server.operator, {"name": "keyless"})
        self.assertEqual((answer.status, answer.code), (400, "invalid_request"))
        self.assertIn("Idempotency-Key", answer.json()["detail"])
        made = self.server.call("POST", "/v1/tenants", self.server.operator, {"name": "keyed"}, {"Idempotency-Key": "1"})
        self.assertEqual(made.status, 201)
        dry = self.server.call("POST", "/v1/tenants?dry_run=true", self.server.operator, {"name": "dry"})
        self.assertEqual(dry.status, 200)
        answer = self.server.call("POST", "/v1/policies:evaluate", self.server.operator, {"zzz": 1})
        self.assertNotIn("Idempotency-Key", answer.json()["detail"], "a route that takes none asks for none")


if __name__ == "__main__":
    rig.main(__name__)
