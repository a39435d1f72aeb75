"""Lists: every item once, whatever happens meanwhile; and cursors that only this cluster could have made."""
import base64
import hashlib
import hmac
import re
import time
import uuid

import rig

DAY_US = 86400 * 1000000
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


class Pages(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.label = {"suite": uuid.uuid4().hex[:8]}
        cls.query = "label=suite:" + cls.label["suite"]
        cls.names = [cls.make(f"page-{i}") for i in range(7)]

    @classmethod
    def make(cls, name, label=None):
        answer = cls.server.call("POST", "/v1/tenants", cls.server.operator,
                                 {"name": name, "labels": label or cls.label})
        assert answer.status == 201, answer
        return name

    def get(self, query, path="/v1/tenants", token=None, status=200):
        answer = self.server.call("GET", f"{path}?{query}", token or self.server.operator)
        self.assertEqual(answer.status, status, f"{query} {answer}")
        return answer

    def walk(self, query, between=lambda page: None, most=50):
        """All names, page by page."""
        names, cursor = [], None
        for page in range(most):
            answer = self.get(query + (f"&cursor={cursor}" if cursor else ""))
            names += [item["name"] for item in answer.json()["data"]]
            cursor = answer.json()["next_cursor"]
            if cursor is None:
                self.assertNotIn("link", answer.headers)
                return names
            self.assertEqual(self.next_of(answer).split("cursor=")[1], cursor)
            between(page)
        raise AssertionError("the list does not end")

    @staticmethod
    def next_of(answer):
        return re.fullmatch(r'<([^>]+)>; rel="next"', answer.headers["link"])[1]

    # --- walking

    def test_every_item_is_there_once_in_its_order(self):
        for limit in (1, 2, 3, 6, 7, 8, 200):
            for order, wanted in (("asc", self.names), ("desc", self.names[::-1])):
                self.assertEqual(self.walk(f"{self.query}&limit={limit}&order={order}"), wanted, (limit, order))
        self.assertEqual(self.walk(self.query), self.names[::-1], "the newest come first")

    def test_the_link_leads_through_the_list_with_its_filters(self):
        names, path = [], f"/v1/tenants?{self.query}&limit=3&order=asc"
        while path:
            answer = self.server.call("GET", path, self.server.operator)
            names += [item["name"] for item in answer.json()["data"]]
            path = self.next_of(answer) if "link" in answer.headers else None
            if path:
                self.assertIn("label=suite%3A", path)
        self.assertEqual(names, self.names)

    def test_an_empty_list_is_a_list(self):
        self.assertEqual(self.get("label=suite:nobody").json(), {"data": [], "next_cursor": None})

    def test_what_is_made_meanwhile_moves_nothing(self):
        label = {"suite": uuid.uuid4().hex[:8]}
        query = f"label=suite:{label['suite']}&limit=1"
        old = [self.make(f"old-{i}-{label['suite']}", label) for i in range(4)]
        made = []

        def make_one(page):
            made.append(self.make("new-" + uuid.uuid4().hex[:12], label))

        self.assertEqual(self.walk(query + "&order=desc", make_one), old[::-1], "newer ones are before the first page")
        old, made = old + made, []
        found = self.walk(query + "&order=asc", lambda page: make_one(page) if page < 2 else None)
        self.assertEqual(found, old + made, "newer ones come at the end")

    def test_times_that_differ_by_a_microsecond_or_not_at_all(self):
        label = {"suite": uuid.uuid4().hex[:8]}
        query = f"label=suite:{label['suite']}"
        names = [self.make(f"tie-{i}-{label['suite']}", label) for i in range(6)]
        for index, offset in enumerate((0, 0, 0, 1, 1, 2)):
            self.server.database(f"UPDATE tenant SET created_at = timestamptz '2026-01-01T00:00:00.000001Z'"
                                 f" + interval '{offset} microseconds' WHERE name = '{names[index]}'")
        for order in ("asc", "desc"):
            found = self.walk(f"{query}&limit=1&order={order}")
            self.assertEqual(sorted(found), sorted(names), "none twice, none lost")
            self.assertEqual(found, self.walk(f"{query}&order={order}"))
        self.assertEqual(self.walk(f"{query}&limit=1&order=asc"), self.walk(f"{query}&limit=1&order=desc")[::-1])

    # --- cursors

    def refused(self, cursor, query=None, **how):
        answer = self.get(f"{query or self.query + '&limit=2&order=asc'}&cursor={cursor}", status=400, **how)
        self.assertEqual(answer.code, "invalid_request")
        self.assertIn("cursor", answer.json()["detail"])
        return answer.json()["detail"]

    def cursor(self):
        return self.get(self.query + "&limit=2&order=asc").json()["next_cursor"]

    def test_a_cursor_that_was_changed_is_refused(self):
        cursor = self.cursor()
        for at in range(0, len(cursor), 3):
            letter = ALPHABET[(ALPHABET.index(cursor[at]) + 1) % 64]
            self.refused(cursor[:at] + letter + cursor[at + 1:])
        for other in (cursor[:-1], cursor + "A", cursor[:40], "A", "AAAA", "%20", cursor + "=", cursor.swapcase()):
            self.refused(other)
        self.get(f"{self.query}&limit=2&order=asc&cursor={cursor}")

    def test_a_cursor_belongs_to_its_list(self):
        cursor = self.cursor()
        self.get(f"{self.query}&limit=200&order=asc&cursor={cursor}")
        for query in (self.query + "&limit=2", self.query + "&limit=2&order=desc", "limit=2&order=asc",
                      "label=suite:other&limit=2&order=asc", self.query + "&state=active&limit=2&order=asc"):
            self.assertIn("another list", self.refused(cursor, query))
        self.assertIn("another list", self.refused(cursor, path="/v1/api-keys", query="order=asc"))

    def test_a_cursor_belongs_to_its_tenant(self):
        keys = [self.server.key(self.server.tenant(f"cursors-{i}"), "tenant_admin") for i in range(2)]
        for key in keys:
            for _ in range(2):
                self.server.session(key)
        cursor = self.get("limit=1", "/v1/sessions", keys[0]).json()["next_cursor"]
        self.refused(cursor, "limit=1", path="/v1/sessions", token=keys[1])
        self.get(f"limit=1&cursor={cursor}", "/v1/sessions", keys[0])

    def forged(self, change=lambda parts: None, key=None):
        """A cursor as the server makes it, with the cluster's own key; `change` alters it before it is signed."""
        found = base64.urlsafe_b64decode(self.cursor() + "=" * (-len(self.cursor()) % 4))
        parts = {"version": found[16:17], "list": found[17:33], "made": found[33:41], "last": found[41:49],
                 "id": found[49:65]}
        change(parts)
        data = b"".join(parts.values())
        secret = key or bytes.fromhex(self.server.database("SELECT encode(cursor_key, 'hex') FROM cluster").strip())
        mac = hmac.digest(secret, data, hashlib.sha256)[:16]
        return base64.urlsafe_b64encode(mac + data).decode().rstrip("=")

    def test_a_cursor_is_good_for_a_day(self):
        now = int(time.time() * 1000000)
        self.get(f"{self.query}&limit=2&order=asc&cursor={self.forged()}")
        young = self.forged(lambda p: p.update(made=(now - DAY_US + 60000000).to_bytes(8, "big")))
        self.get(f"{self.query}&limit=2&order=asc&cursor={young}")
        old = self.forged(lambda p: p.update(made=(now - DAY_US - 1000000).to_bytes(8, "big")))
        self.assertIn("day old", self.refused(old))

    def test_nobody_else_can_make_one(self):
        self.refused(self.forged(key=b"\0" * 32))
        self.refused(self.forged(lambda p: p.update(version=b"\2")))

    def test_a_cursor_outlives_the_server(self):
        cursor = self.cursor()
        self.server.stop()
        self.server.start()
        self.get(f"{self.query}&limit=2&order=asc&cursor={cursor}")


if __name__ == "__main__":
    rig.main(__name__)
