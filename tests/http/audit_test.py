"""The audit log: entries and their filters, the signed head, proofs, the archive, recomputing it all."""
import base64
import hashlib
import io
import json
import tarfile

import rig


def leaf_hash(entry):
    return hashlib.sha256(b"\0" + entry).digest()


def node(left, right):
    return hashlib.sha256(b"\1" + left + right).digest()


def root_of(hashes):
    """RFC 6962 section 2.1, written anew."""
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    return node(root_of(hashes[:k]), root_of(hashes[k:]))


def included(leaf, index, size, proof, root):
    """RFC 9162 section 2.1.3.2."""
    fn, sn, r = index, size - 1, leaf
    for p in proof:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            r = node(p, r)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            r = node(r, p)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and r == root


class Audit(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant, cls.other = cls.server.tenant("mine"), cls.server.tenant("theirs")
        cls.admin, cls.auditor = cls.server.key(cls.tenant, "tenant_admin"), cls.server.key(cls.tenant, "auditor")
        cls.theirs = cls.server.key(cls.other, "auditor")
        cls.sessions = [cls.server.session(cls.admin) for _ in range(7)]
        answer = cls.server.call("POST", "/v1/erasures", cls.admin, {"scope": {"session_id": cls.sessions[0]}},
                                 {"Prefer": "wait=30"})
        assert answer.status == 200, answer
        rig.wait_for("the head to stand still", lambda: cls.settled())

    @classmethod
    def settled(cls):
        size = cls.head(cls.auditor)[1]
        return size >= 12 and cls.server.database("SELECT count(*) FROM kvrun.audit_outbox").strip() == "0"

    @classmethod
    def head(cls, token):
        """origin, size, root"""
        answer = cls.server.call("GET", "/v1/audit/checkpoint", token)
        if answer.status == 404:
            return None, 0, b""
        lines = answer.body.decode().split("\n")
        return lines[0], int(lines[1]), base64.b64decode(lines[2])

    def get(self, path, token=None):
        return self.server.call("GET", path, token or self.auditor)

    def entries(self, query="", token=None):
        return self.get("/v1/audit/entries?limit=200" + query, token).json()["data"]

    def all(self):
        return self.entries("&order=asc")

    # --- entries

    def test_every_leaf_is_its_entrys_and_the_root_is_the_signed_one(self):
        entries, (_, size, root) = self.all(), self.head(self.auditor)
        hashes = [bytes.fromhex(e["leaf_hash"]) for e in entries]
        self.assertEqual([e["index"] for e in entries], list(range(len(entries))))
        self.assertEqual(hashes, [leaf_hash(e["entry"].encode()) for e in entries])
        self.assertEqual(root_of(hashes[:size]), root)

    def test_what_is_searched_by_is_what_the_entry_says(self):
        for entry in self.all():
            if entry["op"] in ("certificate", "upgrade"):
                self.assertEqual(entry["entry"].count("."), 2)
                continue
            line = json.loads(entry["entry"])
            self.assertEqual((entry["op"], entry["outcome"], entry["at"]), (line["op"], line["outcome"], line["ts"]))
            self.assertEqual(entry.get("session_id"), line.get("session"))
            self.assertEqual(entry.get("actor"), line["actor"].get("id"))

    def test_filters(self):
        made = self.entries("&op=session.create")
        self.assertEqual(len(made), 7)
        one = self.entries(f"&session_id={self.sessions[0]}")
        self.assertEqual([e["op"] for e in one], ["erase.destroy", "erase.request", "session.create"])
        self.assertEqual(self.entries(f"&actor={made[0]['actor']}&op=session.create"), made)
        self.assertEqual(self.entries("&outcome=denied"), [])
        middle = made[3]["at"]
        self.assertEqual([e["index"] for e in self.entries(f"&op=session.create&from={middle}")],
                         [e["index"] for e in made[:4]])
        self.assertEqual([e["index"] for e in self.entries(f"&op=session.create&to={middle}")],
                         [e["index"] for e in made[4:]])
        self.assertEqual(self.get("/v1/audit/entries?actor=key_1").code, "invalid_request")

    def test_pages_meet_without_gap_in_both_orders(self):
        whole = self.all()
        for order, expected in (("asc", whole), ("desc", whole[::-1])):
            found, cursor = [], None
            while cursor is not None or not found:
                page = self.get(f"/v1/audit/entries?limit=3&order={order}" + (f"&cursor={cursor}" if cursor else "")).json()
                found += page["data"]
                cursor = page["next_cursor"]
            self.assertEqual(found, expected, order)

    def test_a_tenant_sees_its_own_log_and_an_operator_the_operators(self):
        self.assertNotIn(self.sessions[0], json.dumps(self.entries(token=self.theirs)))
        origins = {self.head(token)[0] for token in (self.auditor, self.theirs, self.server.operator)}
        self.assertEqual(len(origins), 3)
        self.assertTrue(any(o.endswith("/ops") for o in origins))
        self.assertIn("root.change", [e["op"] for e in self.entries(token=self.server.operator)])

    # --- proofs

    def test_inclusion_of_every_entry(self):
        _, size, root = self.head(self.auditor)
        for entry in self.all()[:size]:
            proof = self.get(f"/v1/audit/proof/inclusion?index={entry['index']}&size={size}").json()
            path = [base64.b64decode(h) for h in proof["hashes"]]
            leaf = base64.b64decode(proof["leaf_hash"])
            self.assertEqual(leaf.hex(), entry["leaf_hash"])
            self.assertTrue(included(leaf, entry["index"], size, path, root), entry["index"])
            self.assertFalse(included(leaf, entry["index"] ^ 1, size, path, root))

    def test_consistency_from_every_size(self):
        hashes = [bytes.fromhex(e["leaf_hash"]) for e in self.all()]
        _, size, _ = self.head(self.auditor)
        for start in range(1, size + 1):
            proof = self.get(f"/v1/audit/proof/consistency?from={start}&to={size}").json()
            path = [base64.b64decode(h) for h in proof["hashes"]]
            self.assertTrue(consistent(start, size, root_of(hashes[:start]), root_of(hashes[:size]), path), start)

    def test_proofs_that_cannot_be(self):
        _, size, _ = self.head(self.auditor)
        for path in (f"inclusion?index={size}", f"inclusion?index=0&size={size + 1}", "inclusion", "inclusion?index=-1",
                     "inclusion?index=x", "inclusion?index=0&size=0", "consistency?from=0", f"consistency?from={size + 1}",
                     "consistency?from=2&to=1", f"consistency?from=1&to={size + 1}", "consistency"):
            answer = self.get("/v1/audit/proof/" + path)
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), path)

    # --- the archive

    def test_the_archive_is_the_whole_log_as_tiles(self):
        answer = self.get("/v1/audit:export")
        self.assertEqual((answer.status, answer.headers["content-type"]), (200, "application/x-tar"))
        with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
            files = {member.name: archive.extractfile(member).read() for member in archive.getmembers()}
        lines = files["checkpoint"].decode().split("\n")
        size, root = int(lines[1]), base64.b64decode(lines[2])
        tile = files[f"tile/0/000.p/{size}"]
        hashes = [tile[i:i + 32] for i in range(0, len(tile), 32)]
        self.assertEqual(root_of(hashes), root)
        bundle, entries = files[f"tile/entries/000.p/{size}"], []
        while bundle:
            length = int.from_bytes(bundle[:2], "big")
            entries.append(bundle[2:2 + length])
            bundle = bundle[2 + length:]
        self.assertEqual([leaf_hash(e) for e in entries], hashes)
        self.assertEqual({"log.vkey", "jwks.json"} - files.keys(), set())

    # --- recomputing

    def verify(self, token=None, body=None):
        answer = self.server.call("POST", "/v1/audit:verify", token or self.auditor, body, headers={"Prefer": "wait=30"})
        self.assertEqual(answer.status, 200, answer)
        self.assertEqual(answer.json()["state"], "succeeded")
        return answer.json()["response"]

    def test_verify_finds_a_whole_log_whole(self):
        before = self.head(self.auditor)
        report = self.verify()
        self.assertEqual((report["ok"], report["root_matches"], report["checked"]), (True, True, report["size"]))
        self.assertGreaterEqual(report["size"], before[1])
        self.assertTrue(self.verify(self.server.operator)["ok"])

    def test_verify_takes_a_range(self):
        tenant = self.server.tenant("ranges")
        admin = self.server.key(tenant, "tenant_admin")
        for _ in range(9):
            self.server.session(admin)
        rig.wait_for("a head", lambda: self.server.call("GET", "/v1/audit/checkpoint", admin).status == 200)
        size = rig.wait_for("the head", lambda: (lambda s: s >= 10 and s)(self.verify(admin, {"full": True})["size"]))
        for range_ in ((0, 1), (0, size), (1, 2), (3, 7), (4, 8), (size - 1, size)):
            report = self.verify(admin, dict(zip(("from", "to"), range_)))
            self.assertEqual((report["ok"], report["root_matches"], report["from"], report["to"], report["checked"]),
                             (True, True, *range_, range_[1] - range_[0]), report)
        report = self.verify(admin, {"from": 5})
        self.assertEqual((report["to"], report["checked"]), (report["size"], report["size"] - 5))
        for body, pointer in (({"from": 3, "to": 3}, "/from"), ({"from": 4, "to": 3}, "/from"), ({"to": 10 ** 6}, "/to"),
                              ({"from": 10 ** 6}, "/from"), ({"from": 0, "full": True}, "/full"), ({"full": False}, "/full"),
                              ({"to": 0}, "/to"), ({"from": -1}, "/from")):
            answer = self.server.call("POST", "/v1/audit:verify", admin, body)
            self.assertEqual((answer.status, answer.code, answer.pointer), (400, "invalid_request", pointer), body)


def consistent(first, second, root1, root2, proof):
    """RFC 9162 section 2.1.4.2."""
    if first == second:
        return not proof and root1 == root2
    if first & (first - 1) == 0:
        proof = [root1] + proof
    if not proof:
        return False
    fn, sn = first - 1, second - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = proof[0]
    for c in proof[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            fr, sr = node(c, fr), node(c, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = node(sr, c)
        fn, sn = fn >> 1, sn >> 1
    return fr == root1 and sr == root2 and sn == 0


class Tampered(rig.Suite):
    """A log that somebody changed behind the server's back."""

    def test_verify_names_the_place(self):
        tenant = self.server.tenant("changed")
        admin = self.server.key(tenant, "tenant_admin")
        for _ in range(5):
            self.server.session(admin)

        def report(**body):
            answer = self.server.call("POST", "/v1/audit:verify", admin, body or None, headers={"Prefer": "wait=30"})
            return answer.json().get("response") if answer.status == 200 else None
        first = rig.wait_for("a report on all that there is", lambda: (lambda r: r and r["size"] > 6 and r)(report()))
        self.assertTrue(first["ok"], "the control")
        place = "log_id = (SELECT id FROM kvrun.tenant WHERE name = 'changed') AND idx = 3"
        change = "ALTER TABLE kvrun.audit_leaf DISABLE TRIGGER audit_leaf_is_final; {} WHERE " + place + \
            "; ALTER TABLE kvrun.audit_leaf ENABLE TRIGGER audit_leaf_is_final"
        if self.server.database(change.format("UPDATE kvrun.audit_leaf SET entry = replace(convert_from(entry, 'UTF8'),"
                                              " 'session.create', 'session.cleane')::bytea")) is None:
            self.skipTest("no psql")
        found = report()
        self.assertEqual((found["ok"], found.get("first_bad"), found["root_matches"]), (False, 3, False), found)
        self.assertEqual(report(**{"from": 2, "to": 5}).get("first_bad"), 3)
        self.assertTrue(report(**{"from": 4})["ok"], "the hash before the range is still the signed one")
        self.server.database(change.format("UPDATE kvrun.audit_leaf SET leaf_hash = sha256('\\x00'::bytea || entry)"))
        found = report()
        self.assertEqual((found["ok"], "first_bad" in found, found["root_matches"]), (False, False, False),
                         "entry and hash go together again, but not with the signed root")
        self.server.database(change.format("DELETE FROM kvrun.audit_leaf"))
        self.assertEqual((report()["ok"], report()["gap"]), (False, 3))


if __name__ == "__main__":
    rig.main(__name__)
