"""Bad input, route by route: what each body must not be, made from the contract's schemas. Nothing may change by it."""
import copy
import http.client
import json

import rig
from engine import Engine, hash_of

TABLES = ("tenant", "session", "api_key", "erasure")


class Input(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("input")
        cls.admin, cls.token = cls.server.key(cls.tenant, "tenant_admin"), cls.server.key(cls.tenant, "engine")
        cls.engine = Engine(cls.server, cls.token).open_pool().beat()
        cls.session = cls.server.session(cls.token)
        cls.engine.offload(cls.session, ["a"], [0])
        blocks = {"session_id": cls.session, "pool_id": cls.engine.pool, "hashes": [hash_of("a")]}
        layouts = [cls.engine.regions(), {"kind": "opaque", "format": "f", "engine_version": "1", "tokens_per_block": 1,
                                          "slots": 1, "page_bytes": 4096}]
        model = {"id": "m", "revision": "r", "fingerprint": hash_of("m")}
        memory = {"kind": "memfd", "fd_token": "tok_x", "size_bytes": 65536}
        pools = f"/v1/engines/{cls.engine.id}/pools"
        # path, key, a body that is complete, and the method when it is not POST
        cls.rows = [
            ("/v1/tenants", cls.server.operator, {"name": "fresh", "display_name": "Fresh"}),
            (f"/v1/tenants/{cls.tenant}/api-keys", cls.admin,
             {"name": "k", "roles": ["engine"], "expires_in_seconds": 60}),
            ("/v1/tiers/dram:drain", cls.server.operator, {}),
            ("/v1/tiers/nvme:drain", cls.server.operator, {}),
            ("/v1/sessions", cls.token, {"model": model}),
            ("/v1/engines", cls.token, {"name": "n", "kind": "sim", "engine_version": "1", "pid": 1, "boot_id": "b",
                                        "model": model, "lease_seconds": 5}),
            (f"/v1/engines/{cls.engine.id}:heartbeat", cls.token, {"seq": 1}),
            *((pools, cls.token, {"memory": memory, "layout": layout}) for layout in layouts),
            ("/v1/lookups", cls.token, blocks),
            ("/v1/offloads", cls.token, {**blocks, "slots": [0], "wait": "dram", "deadline_ms": 1000}),
            ("/v1/restores", cls.token, {**blocks, "slots": [0], "deadline_ms": 1000}),
            ("/v1/erasures", cls.admin, {"scope": {"session_id": cls.session}, "basis": "other", "reason": "r"}),
        ]
        cls.before = cls.state()

    @classmethod
    def state(cls):
        """What bad input must leave as it is."""
        rows = [cls.server.database(f"SELECT count(*) FROM {table}") for table in TABLES]
        tiers = [(tier["name"], tier["objects"])
                 for tier in cls.server.call("GET", "/v1/tiers", cls.server.operator).json()["data"]]
        usage = cls.server.call("GET", f"/v1/sessions/{cls.session}", cls.token).json()["usage"]
        return rows, tiers, usage["blocks"]

    def tearDown(self):
        self.assertEqual(self.state(), self.before)

    @staticmethod
    def method(row):
        return row[3] if len(row) > 3 else "POST"

    def refused(self, row, body, status=400, code="invalid_request", pointer=None, **headers):
        path, key, method = row[0], row[1], self.method(row)
        if method == "PATCH":
            headers.setdefault("Content-Type", "application/merge-patch+json")
        answer = self.server.call(method, path, key, body, headers)
        what = f"{path} {body if isinstance(body, bytes) else json.dumps(body)[:300]}"
        self.assertEqual((answer.status, answer.code), (status, code), what)
        if pointer is not None:
            self.assertEqual(answer.pointer or "", pointer, what)
        return answer

    def schema(self, row, body):
        operation = rig.contract.operation(self.method(row), row[0].split("?")[0])
        return next(iter(operation["requestBody"]["content"].values()))["schema"]

    def members(self, schema, body, pointer=""):
        """(pointer, holder, name, schema, required) of every member of a body, however deep."""
        schema = rig.contract.resolve(schema)
        for choice in schema.get("oneOf", []):
            choice = rig.contract.resolve(choice)
            if choice["properties"]["kind"]["const"] == body["kind"]:
                schema = choice
        for name, child in schema.get("properties", {}).items():
            if name not in body:
                continue
            at, found = f"{pointer}/{name}", rig.contract.resolve(child)
            yield at, body, name, found, name in schema.get("required", [])
            if isinstance(body[name], dict):
                yield from self.members(found, body[name], at)
            elif isinstance(body[name], list) and isinstance(body[name][0], dict):
                yield from self.members(found["items"], body[name][0], f"{at}/0")

    def each_member(self):
        """Every member of every row, in a body of its own that may be spoilt."""
        if rig.contract.document is None:
            self.skipTest("needs PyYAML and jsonschema")
        for row in self.rows:
            count = len(list(self.members(self.schema(row, row[2]), row[2])))
            for index in range(count):
                body = copy.deepcopy(row[2])
                yield row, body, *list(self.members(self.schema(row, body), body))[index]

    # --- from the schemas

    def test_the_rows_are_what_the_contract_says(self):
        for row in self.rows:
            if rig.contract.document is not None:
                self.assertEqual(rig.contract.errors(self.schema(row, row[2]), row[2]), [], row[0])

    def test_an_unknown_member_is_refused_at_every_level(self):
        for row in self.rows:
            self.refused(row, {**row[2], "zzz": 1}, pointer="/zzz")
        for row, body, at, holder, name, _, _ in self.each_member():
            if isinstance(holder[name], dict):
                holder[name]["zzz"] = 1
                self.refused(row, body, pointer=f"{at}/zzz")

    def test_a_required_member_is_required(self):
        for row, body, at, holder, name, _, required in self.each_member():
            if required:
                del holder[name]
                answer = self.refused(row, body)
                # a layout without its kind is read as one of regions, which lacks more than that
                self.assertTrue(answer.pointer == at or name == "kind", f"{at} {answer}")

    def test_every_member_has_one_type(self):
        for row, body, at, holder, name, _, _ in self.each_member():
            for value in (None, True, 1.5, 7, "7", [], {}, [[]], [None]):
                kind = type(holder[name])
                if type(value) is kind and kind in (int, str, dict) or (kind is list and value == []):
                    continue
                good, holder[name] = holder[name], value
                answer = self.refused(row, body)
                self.assertTrue((answer.pointer or "").startswith(at) or name == "kind", f"{at} {value} {answer}")
                holder[name] = good

    def test_numbers_have_a_smallest_and_a_largest(self):
        count = 0
        for row, body, at, holder, name, schema, _ in self.each_member():
            if schema.get("type") == "integer":
                for value in (schema["minimum"] - 1, schema["maximum"] + 1, -1, 2**63 - 1, -2**63):
                    holder[name] = value
                    self.refused(row, body, pointer=at)
                    count += 1
        self.assertGreater(count, 50)

    def test_texts_have_a_shortest_and_a_longest(self):
        count = 0
        for row, body, at, holder, name, schema, _ in self.each_member():
            if "maxLength" in schema:
                lengths = [schema["maxLength"] + 1, 5000] + ([schema["minLength"] - 1] if "minLength" in schema else [])
                for length in lengths:
                    holder[name] = "x" * length
                    self.refused(row, body, pointer=at)
                    count += 1
        self.assertGreater(count, 20)

    def test_texts_hold_no_control_characters(self):
        for row, body, at, holder, name, schema, _ in self.each_member():
            if schema.get("type") == "string":
                for bad in ("\n", "\t", "\x1b", "\x7f", "\0"):
                    holder[name] = "x" + bad
                    answer = self.refused(row, body)
                    self.assertIn(answer.pointer, (at, None), at)

    def test_no_text_takes_bytes_that_are_no_utf8(self):
        count = 0
        for row, body, at, holder, name, schema, _ in self.each_member():
            if schema.get("type") == "string":
                holder[name] = "PLACE"
                raw = json.dumps(body).encode()
                for bad in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\\ud800", b"\\udc00\\ud800", b"\\u0000", b"\0"):
                    self.refused(row, raw.replace(b"PLACE", b"x" + bad))
                    count += 1
        self.assertGreater(count, 50)

    def test_words_and_patterns_have_one_spelling(self):
        for row, body, at, holder, name, schema, _ in self.each_member():
            if "enum" in schema or "const" in schema or "pattern" in schema:
                good = holder[name]
                for bad in (good.upper(), good + "x", good + " ", " " + good, "", good + "|" + good):
                    if not rig.contract.errors(schema, bad) or name == "fd_token":
                        continue
                    holder[name] = bad
                    self.refused(row, body)

    def test_lists_have_a_fewest_and_a_most(self):
        for row, body, at, holder, name, schema, _ in self.each_member():
            if schema.get("type") == "array":
                for value in ([], holder[name] * (schema["maxItems"] + 1)):
                    holder[name] = value
                    self.refused(row, body, pointer=at)

    # --- the body as bytes

    def bodies(self):
        for row in self.rows:
            yield row, json.dumps(row[2]).encode()

    def test_what_is_no_json_object_is_refused(self):
        for row, good in self.bodies():
            for bad in (b"{", b"[]", b"1", b"null", b'"x"', b" ", good[:-1], good + b"x", good + good,
                        b"\xef\xbb\xbf" + good, good + b"\0", b"// x\n" + good):
                self.refused(row, bad)

    def test_an_empty_body_is_refused_where_there_must_be_one(self):
        for row in self.rows:
            if not row[0].endswith(":drain"):
                self.refused(row, b"")

    def test_a_member_twice_is_refused(self):
        for row, good in self.bodies():
            if row[2]:
                name = next(iter(row[2]))
                again = json.dumps({name: row[2][name]}).encode()
                self.refused(row, good[:-1] + b"," + again[1:])
                self.refused(row, good[:-1] + b"," + again[1:].replace(name[:1].encode(), b"\\u%04x" % ord(name[0]), 1))

    def test_bytes_that_are_no_utf8_are_refused(self):
        for row, good in self.bodies():
            for bad in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"):
                self.refused(row, good[:-1] + b',"x":"' + bad + b'"}')

    def test_too_deep_and_too_many_are_refused(self):
        for row, good in self.bodies():
            self.refused(row, good[:-1] + b',"x":' + b"[" * 17 + b"]" * 17 + b"}")
            self.refused(row, good[:-1] + b',"x":' + b"[" * 100000)
            self.refused(row, good[:-1] + b',"x":[' + b"1," * 10300 + b"1]}")

    def test_another_media_type_is_refused(self):
        for row, good in self.bodies():
            for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
                self.refused(row, good, 415, "unsupported_media_type", **{"Content-Type": kind})

    def test_a_query_is_refused(self):
        path, key, body = self.rows[3][:3]
        answer = self.server.call("POST", path + "?zzz=true", key, body)
        self.assertEqual((answer.status, answer.code), (400, "invalid_request"))
        self.assertIn("zzz", answer.json()["detail"])

    def test_a_body_on_a_route_without_one_is_refused(self):
        answer = self.server.call("GET", f"/v1/sessions/{self.session}", self.token, {"a": 1})
        self.assertEqual((answer.status, answer.code), (400, "invalid_request"))

    def oversize(self, size, chunked):
        """The status of a body of `size` bytes; None when the connection ended without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        body = b'{"x":"' + b"a" * (size - 8) + b'"}'
        parts = iter([body[i:i + 8192] for i in range(0, size, 8192)])
        try:
            connection.request("POST", "/v1/sessions", parts if chunked else body, headers, encode_chunked=chunked)
            return connection.getresponse().status
        except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
            return None
        finally:
            connection.close()

    def test_a_body_has_a_largest(self):
        limit = 1 << 20
        for chunked in (False, True):
            self.assertEqual(self.oversize(limit, chunked), 400, "a member that is unknown, but not too large")
            self.assertIn(self.oversize(limit + 1, chunked), (413,) if chunked else (413, None))
            self.assertIn(self.oversize(limit + 40000, chunked), (413,) if chunked else (413, None))
            self.assertIn(self.oversize(8 * limit, chunked), (413, None))
        self.assertEqual(self.server.call("GET", "/livez").status, 200)

    def test_bodies_of_every_size_around_a_packet_arrive_whole(self):
        for size in (1439, 1440, 1441, 32767, 32768, 32769, 65535, 65536, 65537):
            for chunked in (False, True):
                self.assertEqual(self.oversize(size, chunked), 400, (size, chunked))

    def test_chunks_of_one_byte_arrive_whole(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        body = json.dumps({"session_id": self.session, "pool_id": self.engine.pool, "hashes": [hash_of("a")]}).encode()
        connection.request("POST", "/v1/lookups", iter([body[i:i + 1] for i in range(len(body))]),
                           {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
                           encode_chunked=True)
        self.assertEqual(json.loads(connection.getresponse().read())["prefix_blocks"], 1)
        connection.close()

    def test_the_largest_calls_that_the_contract_allows_are_taken(self):
        engine = Engine(self.server, self.token, name="wide")
        region = {"offset_bytes": 1099511627776, "stride_bytes": 1099511627776, "run_bytes": 1099511627776}
        answer = engine.register_pool(layout=engine.regions(regions=[region] * 1024))
        self.assertEqual((answer.status, answer.code), (422, "geometry_mismatch"))
        hashes = [hash_of(str(i)) for i in range(4096)]
        body = {"session_id": self.session, "pool_id": self.engine.pool, "hashes": hashes,
                "slots": [4294967295 - i for i in range(4096)]}
        answer = self.server.call("POST", "/v1/restores", self.token, body)
        self.assertEqual((answer.status, answer.pointer), (400, "/slots"), "read whole, then compared with the pool")
        self.server.call("DELETE", f"/v1/engines/{engine.id}", self.token)


if __name__ == "__main__":
    rig.main(__name__)
