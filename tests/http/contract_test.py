"""api/openapi.yaml against the route table, the limits and itself. Needs no server."""
import datetime
import re
import sys
import unittest
from pathlib import Path

import contract
import rig


def limits():
    text = Path(rig.options.source, "api/limits.def").read_text()
    return {name: int(value) for name, value in re.findall(r"^KV_LIMIT\((\w+),\s*(\d+)", text, re.M)}


def nodes(value, path=""):
    yield path, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from nodes(child, f"{path}/{name}")


class TheContract(unittest.TestCase):
    def setUp(self):
        self.document = rig.contract.document

    def operations(self):
        for path, item in self.document["paths"].items():
            for method, operation in item.items():
                if method != "parameters":
                    yield method.upper(), path, operation

    def test_has_the_routes_of_the_table_with_their_roles_and_listeners(self):
        table = {(row.method, row.pattern): row for row in contract.route_table(rig.options.source)}
        described = {(method, re.sub(r"\{\w+\}", "{}", path)): op for method, path, op in self.operations()}
        self.assertEqual(table.keys(), described.keys())
        for key, operation in described.items():
            self.assertEqual(set(operation["x-roles"]), table[key].roles, key)
            self.assertEqual(set(operation["x-listeners"]), table[key].listeners, key)
            self.assertEqual(operation.get("security") == [], table[key].public, key)
        public = sum(row.public for row in table.values())
        print(f"{len(table)} routes = {len(described)} operations; roles agree on {len(table) - public}, {public} are public", file=sys.stderr)

    def test_a_key_that_stands_twice_is_found(self):
        with self.assertRaisesRegex(ValueError, "line 2: b stands there twice"):
            contract.load("a:\n  {b: 1, c: 2, b: 3}\n")
        self.assertEqual(contract.load("a: {b: 1}\nc: {b: 1}\n"), {"a": {"b": 1}, "c": {"b": 1}}, "the control")
        text = Path(rig.options.source, "api/openapi.yaml").read_text()
        with self.assertRaisesRegex(ValueError, "livez stands there twice"):
            contract.load(text.replace("\n  /readyz:", "\n  /livez:", 1))

    def test_what_will_go_is_told_by_contract_and_answers_alike(self):
        """`deprecated: true` with `x-deprecated-at` and `x-sunset` is a row of the server's table, and the other way round."""
        sample = '= {\n{"GET", "/v1/old/{}", UINT64_C(1767225600), UINT64_C(1798761600), "x"}, {"PUT", "/v1/b", UINT64_C(5), 0, "x"}};'
        self.assertEqual(contract.deprecations("kv_deprecations[] " + sample),
                         {("GET", "/v1/old/{}"): (1767225600, 1798761600), ("PUT", "/v1/b"): (5, 0)}, "the control")

        def seconds(text):
            return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) if text else 0

        told = {(method, re.sub(r"\{\w+\}", "{}", path)): (seconds(op.get("x-deprecated-at")), seconds(op.get("x-sunset")))
                for method, path, op in self.operations() if op.get("deprecated")}
        self.assertEqual(told, contract.deprecations(Path(rig.options.source, "server/http/headers.c").read_text()))

    def test_every_reference_leads_somewhere(self):
        for path, node in nodes(self.document):
            if isinstance(node, dict) and "$ref" in node:
                rig.contract.resolve({"$ref": node["$ref"]})
            self.assertNotEqual(node, {}, path)

    def test_every_operation_has_what_callers_rely_on(self):
        names = [operation["operationId"] for _, _, operation in self.operations()]
        self.assertEqual(len(names), len(set(names)))
        for method, path, operation in self.operations():
            self.assertIn("default", operation["responses"], path)
            self.assertTrue(operation.get("summary") or operation.get("description") or operation["x-roles"], path)
            expected = {"401", "403", "406", "503"} if operation["x-roles"] else set()
            expected |= {"400", "415"} if "requestBody" in operation else set()
            expected |= {"404"} if "{" in path else set()
            self.assertLessEqual(expected, operation["responses"].keys(), f"{method} {path}")

    def test_requests_allow_no_unknown_members(self):
        for _, path, operation in self.operations():
            for _, media in operation.get("requestBody", {}).get("content", {}).items():
                self.closed(media["schema"], path)

    def closed(self, schema, where):
        schema = rig.contract.resolve(schema)
        if schema.get("type") == "object":
            values = schema.get("additionalProperties")
            if "propertyNames" in schema:  # a map: its names are the client's, its values are not free
                self.closed(values, f"{where} *")
            else:
                self.assertIs(values, False, where)
        for name, child in schema.get("properties", {}).items():
            self.closed(child, f"{where} {name}")
        for child in schema.get("oneOf", []) + ([schema["items"]] if "items" in schema else []):
            self.closed(child, where)

    def test_examples_are_valid(self):
        count = 0
        for path, node in nodes(self.document):
            if not (isinstance(node, dict) and "schema" in node and ("example" in node or "examples" in node)):
                continue
            values = [node["example"]] if "example" in node else [e["value"] for e in node["examples"].values()]
            for value in values:
                self.assertEqual(rig.contract.errors(node["schema"], value), [], path)
                count += 1
        self.assertGreater(count, 15)

    def test_limits_are_those_of_the_server(self):
        schemas, known = self.document["components"]["schemas"], limits()
        rows = [(schemas["Hashes"]["maxItems"], "BLOCKS_PER_CALL"), (schemas["Slots"]["maxItems"], "BLOCKS_PER_CALL"),
                (schemas["LayoutRegions"]["properties"]["regions"]["maxItems"], "POOL_REGIONS"),
                (schemas["PoolBytes"]["maximum"], "POOL_BYTES"), (schemas["DeadlineMs"]["maximum"], "TRANSFER_MS"),
                (schemas["ErasureNew"]["properties"]["reason"]["maxLength"], "TEXT_BYTES")]
        for value, name in rows:
            self.assertEqual(value, known[name], name)
        text = self.document["info"]["description"]
        self.assertIn(f"{known['JSON_DEPTH']} levels or {known['JSON_MEMBERS']:,} values", text)
        self.assertEqual(known["BODY_BYTES"], 1 << 20)
        self.assertIn("1 MiB", text)

    def test_statuses_of_codes_are_documented_where_they_have_their_own(self):
        registry = Path(rig.options.source, "api/errors.def").read_text()
        status = dict(re.findall(r"^KV_ERROR\((\w+),\s*(\d+)", registry, re.M))
        problem = self.document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]
        self.assertEqual(problem, [name.lower() for name in status])
        rows = re.findall(r"^KV_PROBLEM\((\w+),", Path(rig.options.source, "server/http/problem_text.def").read_text(), re.M)
        self.assertEqual(sorted(rows), sorted(status), "each code has one text at /problems")


if contract.yaml is None:
    print("PyYAML or jsonschema is not installed", file=sys.stderr)
    sys.exit(rig.SKIP)
if __name__ == "__main__":
    rig.main(__name__, needs_server=False)
