"""Who may call what: no key, every role, another tenant, keys that are none."""
import copy
import itertools
import re
import string
import sys
import time

import contract
import rig
from engine import Engine

O, T, E, A, V, S = "operator", "tenant_admin", "engine", "auditor", "viewer", "security_officer"
M = "metrics"
# Nobody is asked who they are here; that is said a second time, so that a route does not become public by an oversight. What
# every other route is for stands in its x-roles, and contract_test.py compares those with the server's own table.
PUBLIC = {
    ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/startupz"), ("GET", "/metrics"), ("GET", "/version"),
    ("GET", "/v1/openapi.yaml"), ("GET", "/.well-known/kvrun/jwks.json"), ("GET", "/.well-known/kvrun/log.vkey"),
    ("GET", "/problems"), ("GET", "/problems/{}"), ("POST", "/v1/certificates:verify"),
}
# Bodies where the contract's example would be refused before anybody looks for the id: its time has gone by.
TOMORROW = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86400))
BODIES = {"pinSession": {"until": TOMORROW}, "placeHold": {"scope": {}, "reason": "r", "expires_at": TOMORROW}}
# Kinds of ids that are no tenant's.
NOBODYS = {"IncarnationId", "EventId", "RootId"}
PREFIXES = {"tenants": "ten", "api-keys": "key", "sessions": "ses", "engines": "eng", "pools": "poo", "erasures": "era",
            "certificates": "crt", "operations": "opr", "holds": "hld", "approvals": "apr"}


def example(pattern):
    """A path of the pattern, with an id of the right kind that nothing has."""
    if pattern.startswith("/problems"):
        return pattern.replace("{}", "stale")
    kind = pattern.split("/")[2] if "{}" in pattern else ""
    return pattern.replace("{}", PREFIXES.get(kind, "x") + "_" + "0" * 26)


class Access(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant, cls.other = cls.server.tenant("ours"), cls.server.tenant("theirs")
        cls.keys = {role: cls.server.key(cls.tenant, role) for role in (T, E, A, V, S)}
        cls.keys[O] = cls.server.operator
        cls.platform = {role: cls.platform_key(role) for role in (A, V, S, M)}
        cls.theirs = {role: cls.server.key(cls.other, role) for role in (T, E, A, V, S)}
        cls.table = contract.route_table(rig.options.source)

    @classmethod
    def platform_key(cls, role):
        answer = cls.server.patient("POST", "/v1/api-keys", cls.server.operator, {"name": role, "roles": [role]})
        assert answer.status == 201, answer
        return answer.json()["secret"]

    def routes(self, public=False):
        poll = {"/v1/events": "?poll=true&wait_seconds=0"}  # else the answer is a stream
        return [(row.method, example(row.pattern) + poll.get(row.pattern, ""), row.roles)
                for row in self.table if row.public == public]

    def call(self, method, path, token, body=None, headers=None, **how):
        body = {} if method in ("POST", "PUT", "PATCH") and body is None else body
        kind = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        return self.server.call(method, path, token, body, {**kind, **(headers or {})}, **how)

    def test_public_routes_are_those_that_were_meant(self):
        self.assertEqual({(row.method, row.pattern) for row in self.table if row.public}, PUBLIC)
        for row in self.table:
            self.assertNotEqual(row.public, bool(row.roles), row)

    def test_public_routes_need_no_key_and_mind_none(self):
        for method, path, _ in self.routes(public=True):
            admin = path in ("/startupz", "/metrics")
            for token in (None, "rubbish", self.keys[E]):
                body, kind = (b"x", {"Content-Type": "text/plain"}) if method == "POST" else (None, {})
                self.assertEqual(self.server.call(method, path, token, body, kind, admin=admin).status, 200, path)

    def test_without_a_key_nothing_else_answers(self):
        for method, path, _ in self.routes():
            answer = self.call(method, path, None)
            self.assertEqual((answer.status, answer.code), (401, "unauthenticated"), path)
            self.assertIn("Bearer", answer.headers["www-authenticate"])

    def test_roles_that_are_not_named_are_refused(self):
        for method, path, roles in self.routes():
            for role in {O, T, E, A, V, S, M} - roles:
                answer = self.call(method, path, self.platform[M] if role == M else self.keys[role])
                self.assertEqual((answer.status, answer.code), (403, "forbidden"), f"{role} {path}")

    def test_what_is_a_tenants_is_not_for_keys_of_none(self):
        rows = [row for row in self.table if "TENANT" in row.flags]
        self.assertGreater(len(rows), 20)
        for row in rows:
            for role in row.roles & self.platform.keys():
                answer = self.call(row.method, example(row.pattern), self.platform[role])
                self.assertEqual((answer.status, answer.code), (403, "forbidden"), f"{role} {row}")

    def test_roles_that_are_named_get_past(self):
        for method, path, roles in self.routes():
            for role in roles & self.keys.keys():
                answer = self.call(method, path, self.keys[role])
                self.assertIn(answer.status, (200, 202, 204, 400, 404, 410, 422), f"{role} {path}: {answer}")

    def test_a_key_is_looked_at_before_the_body(self):
        answer = self.server.call("POST", "/v1/sessions", None, b"{", {"Content-Type": "text/plain"})
        self.assertEqual(answer.status, 401)

    # --- keys that are none

    def own_tenant(self, authorization):
        return self.server.call("GET", f"/v1/tenants/{self.tenant}", headers={"Authorization": authorization}).status

    def test_rubbish_is_no_key(self):
        key = self.keys[T]
        parts = key.split("_")
        rubbish = ["", " ", "x", "Bearer", "kvrun_", "kvrun_live_", "kvrun_live___", "null", "a" * 127, "a" * 128,
                   "a" * 4000, key[:-1], key + "a", key + " ", " " + key, key.upper(), key.replace("live", "test"),
                   "_".join(parts[:3] + ["A" * 43] + parts[4:]), "_".join(parts[:2] + ["A" * 8] + parts[3:]),
                   key + "," + key]
        for token in rubbish:
            self.assertEqual(self.own_tenant(f"Bearer {token}"), 401, token)

    def test_another_scheme_is_no_key(self):
        for scheme in ("", "Basic ", "Token ", "Bearer:"):
            self.assertEqual(self.own_tenant(scheme + self.keys[T]), 401, scheme)
        self.assertEqual(self.own_tenant("Bearer"), 401)
        self.assertEqual(self.own_tenant("bearer " + self.keys[T]), 200, "the scheme's name has no case")

    def test_a_key_with_any_character_changed_is_no_key(self):
        key = self.keys[T]
        for position, old in enumerate(key):
            new = next(c for c in string.ascii_letters + string.digits if c != old)
            answer = self.server.call("GET", f"/v1/tenants/{self.tenant}", key[:position] + new + key[position + 1:])
            self.assertEqual(answer.status, 401, position)
        self.assertEqual(self.server.call("GET", f"/v1/tenants/{self.tenant}", key).status, 200)

    # --- another tenant

    def belongings(self, keys, tenant):
        """One of each kind of thing that has an id, by the name of its schema."""
        engine = Engine(self.server, keys[E], name=tenant[-20:]).open_pool()
        erased = {"scope": {"session_id": self.server.session(keys[T])}}
        erasure = self.call("POST", "/v1/erasures", keys[T], erased, headers={"Prefer": "wait=30"}).json()
        operation = self.call("POST", "/v1/audit:verify", keys[A])
        self.assertEqual(operation.status, 202, operation)
        key = self.call("POST", f"/v1/tenants/{tenant}/api-keys", keys[T], {"name": "k", "roles": [E]}).json()
        allowed = {"tiers": {"dram": {}, "nvme": {}}, "hold": {"allowed": True}, "approvals": {"hold_release": 2}}
        self.assertEqual(self.call("PUT", f"/v1/tenants/{tenant}/policy", keys[S], allowed).status, 200)
        hold = self.call("POST", "/v1/holds", keys[T], {**BODIES["placeHold"], "scope": {"label": {"held": "1"}}}).json()
        approval = self.call("DELETE", f"/v1/holds/{hold['id']}", keys[T]).json()
        return {"TenantId": tenant, "HoldId": hold["id"], "ApprovalId": approval["id"], "KeyId": key["id"], "SessionId": self.server.session(keys[E]), "EngineId": engine.id,
                  "PoolId": engine.pool, "ErasureId": erasure["id"], "OperationId": operation.json()["id"],
                  "CertificateId": rig.wait_for("the certificate", lambda: self.call(
                      "GET", f"/v1/erasures/{erasure['id']}", keys[T]).json().get("certificate_id"))}

    @staticmethod
    def kind_of(node):
        return node.get("$ref", "").split("/")[-1]

    def ids_in(self, schema, kinds, at=()):
        """(place, kind) of each id in a body, through every choice."""
        if self.kind_of(schema) in kinds:
            yield at, self.kind_of(schema)
            return
        schema = rig.contract.resolve(schema)
        for choice in schema.get("oneOf", []) + schema.get("anyOf", []) + schema.get("allOf", []):
            yield from self.ids_in(choice, kinds, at)
        for name, child in schema.get("properties", {}).items():
            yield from self.ids_in(child, kinds, (*at, name))

    def places(self, item, operation, kinds):
        """Every place of an operation where an id goes: (where, names, kind)."""
        for parameter in map(rig.contract.resolve, item.get("parameters", []) + operation.get("parameters", [])):
            if self.kind_of(parameter["schema"]) in kinds:
                yield parameter["in"], (parameter["name"],), self.kind_of(parameter["schema"])
        for media in operation.get("requestBody", {}).get("content", {}).values():
            for at, kind in sorted(set(self.ids_in(media["schema"], kinds))):
                yield "body", at, kind

    @staticmethod
    def body_of(operation):
        if operation["operationId"] in BODIES:
            return copy.deepcopy(BODIES[operation["operationId"]])
        for media in operation.get("requestBody", {}).get("content", {}).values():
            examples = [media["example"]] if "example" in media else [e["value"] for e in media.get("examples", {}).values()]
            return copy.deepcopy(examples[0]) if examples else {}
        return None

    def request(self, path, operation, places, subject, owned):
        """Target and body: in the subject's place the id in question, in every other one that is needed the caller's own."""
        (where, at), value = subject
        body = self.body_of(operation)
        for place, names, kind in places:
            if place == "path":
                path = path.replace("{" + names[0] + "}", value if (place, names) == (where, at) else owned[kind])
            elif place == "body" and len(names) == 1:
                body[names[0]] = owned[kind]
        if where == "body":
            holder = body
            for name in at[:-1]:
                holder[name] = {}
                holder = holder[name]
            holder[at[-1]] = value
        query = [f"{at[0]}={value}"] if where == "query" else []
        query += ["poll=true", "wait_seconds=0"] if path == "/v1/events" else []
        return re.sub(r"\{\w+\}", "1", path) + ("?" + "&".join(query) if query else ""), body

    def operations(self):
        for path, item in rig.contract.document["paths"].items():
            for method, operation in item.items():
                if method != "parameters":
                    yield path, method.upper(), operation, item

    def shown(self, method, path, body, role):
        answer = self.call(method, path, self.theirs[role], body)
        kind = answer.headers.get("content-type", "")
        if "json" not in kind:
            return answer.status, answer.body
        document = answer.json()
        for name in ("request_id", "instance"):
            document.pop(name, None)
        return answer.status, document

    def test_ids_of_another_tenant_do_not_exist(self):
        """Derived from the contract: each place of each route where an id goes, with each role that may call it. Somebody
        else's id is answered to the letter like one that nothing has."""
        if rig.contract.document is None:
            self.skipTest("needs PyYAML and jsonschema")
        ours = self.belongings(self.keys, self.tenant)
        theirs = self.belongings(self.theirs, self.other)
        nothing = {kind: value[:4] + "0" * 25 + "1" for kind, value in ours.items()}  # all zeros would be no id at all
        schemas = {name for name in rig.contract.document["components"]["schemas"] if name.endswith("Id")}
        self.assertEqual(schemas - ours.keys(), NOBODYS, "a new kind of id: whose is it?")
        tried, wrong = set(), []
        for path, method, operation, item in self.operations():
            places = list(self.places(item, operation, ours.keys()))
            for (where, at, kind), role in itertools.product(places, sorted(set(operation["x-roles"]) & self.theirs.keys())):
                what = f"{role} {method} {path} {where} {'.'.join(at)}"
                answers = [self.shown(method, *self.request(path, operation, places, ((where, at), value), theirs), role)
                           for value in (ours[kind], nothing[kind])]
                if answers[0] != answers[1] or answers[0][0] not in ((200, 403, 404) if where == "query" else (404, 410)):
                    wrong.append(f"{what}: {answers}")
                tried.add((method, path, where, at))
        self.assertEqual(wrong, [])
        print(f"{len(tried)} places for an id, each with every role that may call it", file=sys.stderr)
        self.assertGreater(len(tried), 40)
        self.assertEqual(self.server.call("GET", f"/v1/sessions/{ours['SessionId']}", self.keys[E]).status, 200)

    def test_nothing_that_is_listed_is_another_tenants(self):
        """Every route that is read, with every role of another tenant: none of our ids is in its answer."""
        ours = self.belongings(self.keys, self.tenant)
        for method, path, roles in self.routes():
            for role in roles & self.theirs.keys() if method == "GET" else ():
                body = self.call(method, path, self.theirs[role]).body.decode(errors="replace")
                for kind, value in ours.items():
                    self.assertNotIn(value, body, f"{role} {path} shows our {kind}")
        found = self.call("GET", "/v1/sessions", self.keys[T]).body.decode()
        self.assertIn(ours["SessionId"], found, "the control")

    def test_an_admin_makes_keys_for_its_tenant_but_none_of_the_operator(self):
        path = f"/v1/tenants/{self.tenant}/api-keys"
        self.assertEqual(self.call("POST", path, self.keys[T], {"name": "x", "roles": [E]}).status, 201)
        for roles, status in (([O], 400), ([A, E], 422), ([A, T], 422), ([S], 403), (["root"], 400), ([E, E], 400), ([], 400)):
            answer = self.call("POST", path, self.keys[T], {"name": "x", "roles": roles})
            self.assertEqual(answer.status, status, roles)

    def test_a_tenants_name_is_taken_once(self):
        answer = self.call("POST", "/v1/tenants", self.keys[O], {"name": "ours"})
        self.assertEqual((answer.status, answer.code), (409, "tenant_exists"))

    def test_the_admin_listener_knows_no_key_at_all(self):
        for method, path, _ in self.routes():
            self.assertEqual(self.call(method, path, self.keys[O], admin=True).status, 404, path)


if __name__ == "__main__":
    rig.main(__name__)
