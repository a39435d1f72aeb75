"""The table of commands against api/openapi.yaml: every path, query parameter, body member and column is in the contract."""
import json
import os
import re
import subprocess
import sys
import unittest

import rig

try:
    import yaml
except ImportError:
    print("PyYAML is not installed", file=sys.stderr)
    sys.exit(rig.SKIP)

# What the program takes out of other places than the answer's items.
ROWS_OF_ITS_OWN = {"events"}
# Requests whose body the command makes itself, or whose target depends on the argument.
BODIES_OF_THEIR_OWN = {"policies set", "policies diff", "policies eval", "certs verify"}


class CommandTable(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.access(rig.options.kvrun, os.X_OK):
            raise unittest.SkipTest("there is no program; give it with --kvrun")
        with open(f"{rig.options.source}/api/openapi.yaml", encoding="utf-8") as file:
            cls.spec = yaml.safe_load(file)
        text = subprocess.run([rig.options.kvrun, "help", "--json"], capture_output=True, text=True, check=True).stdout
        cls.rows = json.loads(text)

    def resolve(self, node):
        while isinstance(node, dict) and "$ref" in node:
            target = self.spec
            for part in node["$ref"].lstrip("#/").split("/"):
                target = target[part]
            node = target
        return node

    def members(self, schema):
        """All members a schema may have, through $ref, allOf, oneOf and anyOf."""
        schema = self.resolve(schema)
        found = dict(schema.get("properties", {}))
        for how in ("allOf", "oneOf", "anyOf"):
            for part in schema.get(how, []):
                found.update(self.members(part))
        if schema.get("additionalProperties") or schema.get("patternProperties"):
            found["*"] = {}
        return found

    def has(self, schema, path):
        for name in path.split("."):
            members = self.members(schema)
            if "*" in members:
                return True
            if name not in members:
                return False
            schema = members[name]
        return True

    def operation(self, method, target):
        shape = re.sub(r"\{[^}]*\}", "{}", target)
        for path, item in self.spec["paths"].items():
            if re.sub(r"\{[^}]*\}", "{}", path) == shape and method.lower() in item:
                parameters = item.get("parameters", []) + item[method.lower()].get("parameters", [])
                return item[method.lower()], [self.resolve(parameter) for parameter in parameters]
        # A path that the contract writes out for one of the values.
        for path, item in self.spec["paths"].items():
            if re.fullmatch(re.escape(shape).replace(r"\{\}", "[a-z]+"), path) and method.lower() in item:
                parameters = item.get("parameters", []) + item[method.lower()].get("parameters", [])
                return item[method.lower()], [self.resolve(parameter) for parameter in parameters]
        return None, []

    def requests(self):
        for row in self.rows:
            for target in filter(None, (row.get("target"), row.get("tenant_target"))):
                yield row, row["method"], target

    def test_every_target_is_a_route(self):
        missing = [f"{row['name']}: {method} {target}" for row, method, target in self.requests()
                   if self.operation(method, target)[0] is None]
        self.assertEqual(missing, [])

    def test_every_query_flag_is_a_parameter(self):
        missing = []
        for row, method, target in self.requests():
            operation, parameters = self.operation(method, target)
            names = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
            wanted = {flag["member"] for flag in row["flags"] if flag["place"] == "query"}
            wanted |= {"limit", "cursor", "order"} if row["pages"] else set()
            wanted |= {"dry_run"} if row["dry_run"] else set()
            missing += [f"{row['name']}: {name}" for name in wanted - names if operation]
        self.assertEqual(missing, [])

    def test_every_body_flag_is_a_member(self):
        missing = []
        for row, method, target in self.requests():
            operation, _ = self.operation(method, target)
            wanted = [flag["member"] for flag in row["flags"] if flag["place"] == "body"]
            wanted += [row["arg_member"]] if row.get("arg_member") else []
            if operation is None or not wanted or row["name"] in BODIES_OF_THEIR_OWN:
                continue
            path = target if row["name"] != "loglevel" else None
            if path is None:
                operation, _ = self.operation("PATCH", target)
            content = self.resolve(operation.get("requestBody", {})).get("content", {})
            schema = next(iter(content.values()), {}).get("schema", {})
            missing += [f"{row['name']}: {member}" for member in wanted if not self.has(schema, member)]
        self.assertEqual(missing, [])

    def test_every_column_is_a_member_of_the_items(self):
        missing = []
        for row, method, target in self.requests():
            operation, _ = self.operation(method, target)
            if operation is None or not row["columns"] or row["name"] in ROWS_OF_ITS_OWN:
                continue
            content = self.resolve(operation["responses"]["200"])["content"]
            schema = self.members(content["application/json"]["schema"]).get("data", {})
            items = self.resolve(schema).get("items", {})
            missing += [f"{row['name']}: {member}" for member in row["columns"] if not self.has(items, member)]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    rig.main(__name__, needs_server=False)
