"""The HTTP contract as data: api/openapi.yaml, and answers held to it.

PyYAML and python3-jsonschema are used where they are installed. Without them problem documents are checked by hand, and
one line says that the rest was not.
"""
import json
import re
import sys
from pathlib import Path

try:
    import yaml
    from jsonschema import Draft202012Validator
except ImportError:
    yaml = None


def load(text):
    """YAML in which a key that stands twice in one mapping is an error: the library would take the last and say nothing."""
    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        pass

    def mapping(loader, node):
        names = [loader.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(name) for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"line {node.start_mark.line + 1}: {', '.join(sorted(twice))} stands there twice")
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return yaml.load(text, Loader)


def deprecations(text):
    """{(method, pattern): (since, sunset)} of the table in server/http/headers.c, in seconds since 1970."""
    rows = re.search(r"kv_deprecations\[\] = \{(.*?)\};", text, re.S).group(1)
    return {(method, pattern): (int(since), int(sunset)) for method, pattern, since, sunset
            in re.findall(r'\{"([A-Z]+)",\s*"([^"]+)",\s*UINT64_C\((\d+)\),\s*(?:UINT64_C\()?(\d+)', rows)}


PROBLEM_MEMBERS = {"type", "title", "status", "detail", "instance", "code", "request_id", "retryable"}


class Route:
    """One row of the route table in server/http/router.c."""

    NAMES = {"O": "operator", "T": "tenant_admin", "E": "engine", "A": "auditor", "S": "security_officer",
             "V": "viewer", "M": "metrics"}

    def __init__(self, method, pattern, roles, flags, query):
        self.method, self.pattern = method, pattern
        self.roles = {self.NAMES[role] for role in roles if role in self.NAMES}
        self.listeners = {name.lower() for name in flags if name in ("API", "ADMIN")}
        self.public = "PUBLIC" in flags
        self.flags, self.query = set(flags), query

    def __repr__(self):
        return f"{self.method} {self.pattern}"


def route_table(source):
    text = (Path(source) / "server/http/router.c").read_text()
    rows = re.findall(r'\{"([A-Z]+)",\s+"([^"]+)",\s+([^,]+),\s+([^,]+),\s+kv_h_\w+,\s+(\w+)\}', text)
    assert len(rows) > 20, "the route table was not understood"
    return [Route(m, p, re.findall(r"\w+", roles), re.findall(r"\w+", flags), query)
            for m, p, roles, flags, query in rows]


class Contract:
    def __init__(self, source):
        self.document = None
        if yaml is None:
            print("PyYAML or jsonschema is missing: only problem documents are checked", file=sys.stderr)
            return
        self.document = load((Path(source) / "api/openapi.yaml").read_text())
        self.validators = {}
        self.paths = [(re.compile("^" + re.sub(r"\\\{\w+\\\}", "[a-z0-9_]+", re.escape(path)) + "$"), item)
                      for path, item in self.document["paths"].items()]

    def without_security(self):
        """For a proxy that would answer 401 itself: what our server says is what is to be compared."""
        document = json.loads(json.dumps(self.document))
        for node in [document, *(operation for item in document["paths"].values() for operation in item.values() if isinstance(operation, dict))]:
            node.pop("security", None)
        return document

    def resolve(self, node):
        while "$ref" in node:
            target = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            node = target
        return node

    def errors(self, schema, value):
        key = json.dumps(schema, sort_keys=True)
        if key not in self.validators:
            whole = {"allOf": [schema], "components": self.document["components"]}
            self.validators[key] = Draft202012Validator(whole)
        return [f"{'/'.join(map(str, e.path))}: {e.message[:200]}" for e in self.validators[key].iter_errors(value)]

    def operation(self, method, path):
        for pattern, item in self.paths:
            if pattern.match(path) and method.lower() in item:
                return item[method.lower()]
        return None

    def check(self, method, path, answer):
        """Raises AssertionError when the answer is not one that the contract describes."""
        where = f"{method} {path} -> {answer.status}"
        kind = (answer.headers.get("content-type") or "").split(";")[0]
        if answer.status >= 400 and not (kind == "text/plain" and path in ("/readyz", "/startupz")):
            self.check_problem(where, kind, answer)
        if self.document is None or method in ("HEAD", "OPTIONS"):
            return
        operation = self.operation(method, path)
        if operation is None:
            assert answer.status in (400, 404, 405, 414, 501), f"{where}: not in the contract"
            return
        responses = operation["responses"]
        assert str(answer.status) in responses or answer.status >= 400, f"{where}: the status is not documented"
        response = self.resolve(responses.get(str(answer.status), responses["default"]))
        content = response.get("content", {})
        if not content:
            assert answer.body == b"", f"{where}: a body where none is documented"
            return
        assert kind in content, f"{where}: {kind} is not documented"
        if kind.endswith("json"):
            errors = self.errors(content[kind]["schema"], answer.json())
            assert not errors, f"{where}: {errors}"
        if kind.endswith("json") and answer.json().get("dry_run") is True:
            return  # nothing was made, so nothing leads to it
        described = {name.lower() for name in response.get("headers", {})}
        for name in ("etag", "link", "location"):
            assert answer.status >= 400 or name not in answer.headers or name in described, f"{where}: {name} is new"
        for name, header in response.get("headers", {}).items():
            may_be_absent = self.resolve(header).get("required") is False
            assert may_be_absent or name.lower() in answer.headers, f"{where}: the header {name} is missing"

    @staticmethod
    def check_problem(where, kind, answer):
        if answer.body == b"" and answer.head:
            return
        assert kind == "application/problem+json", f"{where}: {kind} {answer.body[:200]}"
        problem = answer.json()
        assert PROBLEM_MEMBERS <= problem.keys(), f"{where}: {problem}"
        assert problem["status"] == answer.status and problem["type"] == "/problems/" + problem["code"], where
        assert problem["request_id"] == answer.headers.get("x-request-id"), where
        text = answer.body.decode()
        for word in ("SELECT", "INSERT", "/var/lib", "/tmp/", "postgres", "libpq", ".c:"):
            assert word not in text, f"{where}: {word} in {text}"
