"""Who may call what: no key, every role, another tenant, keys that are none."""
import string

import contract
import rig
from engine import Engine, hash_of

O, T, E, A, V, S = "operator", "tenant_admin", "engine", "auditor", "viewer", "security_officer"
# What each route is for, said a second time: the server's own table is compared with it.
EXPECTED = {
    ("GET", "/livez"): None, ("GET", "/readyz"): None, ("GET", "/startupz"): None, ("GET", "/metrics"): None,
    ("GET", "/version"): None, ("GET", "/v1/openapi.yaml"): None, ("GET", "/.well-known/kvrun/jwks.json"): None,
    ("GET", "/.well-known/kvrun/log.vkey"): None, ("GET", "/problems"): None, ("GET", "/problems/{}"): None,
    ("POST", "/v1/tenants"): {O}, ("GET", "/v1/tenants"): {O, V}, ("GET", "/v1/tenants/{}"): {O, T, V},
    ("PATCH", "/v1/tenants/{}"): {O, T}, ("DELETE", "/v1/tenants/{}"): {O}, ("POST", "/v1/tenants/{}:suspend"): {O},
    ("POST", "/v1/tenants/{}:resume"): {O}, ("POST", "/v1/tenants/{}:restore"): {O},
    ("GET", "/v1/tenants/{}/usage"): {O, T, V},
    ("POST", "/v1/tenants/{}/api-keys"): {O, T}, ("GET", "/v1/tenants/{}/api-keys"): {O, T},
    ("GET", "/v1/tenants/{}/api-keys/{}"): {O, T}, ("PATCH", "/v1/tenants/{}/api-keys/{}"): {O, T},
    ("DELETE", "/v1/tenants/{}/api-keys/{}"): {O, T}, ("POST", "/v1/tenants/{}/api-keys/{}:rotate"): {O, T},
    ("POST", "/v1/api-keys"): {O}, ("GET", "/v1/api-keys"): {O}, ("GET", "/v1/api-keys/{}"): {O},
    ("PATCH", "/v1/api-keys/{}"): {O}, ("DELETE", "/v1/api-keys/{}"): {O}, ("POST", "/v1/api-keys/{}:rotate"): {O},
    ("POST", "/v1/sessions"): {T, E}, ("GET", "/v1/sessions"): {T, V, A},
    ("GET", "/v1/sessions/{}"): {T, E, V, A}, ("PATCH", "/v1/sessions/{}"): {T}, ("POST", "/v1/sessions/{}:touch"): {T, E},
    ("POST", "/v1/sessions/{}:pin"): {T, E}, ("POST", "/v1/sessions/{}:unpin"): {T, E},
    ("POST", "/v1/sessions/{}:explain"): {T, O}, ("DELETE", "/v1/sessions/{}"): {T, E},
    ("GET", "/v1/tenants/{}/policy"): {O, T, S, A, V}, ("PUT", "/v1/tenants/{}/policy"): {T, S},
    ("GET", "/v1/tenants/{}/policy/versions"): {O, T, S, A, V},
    ("GET", "/v1/tenants/{}/policy/versions/{}"): {O, T, S, A, V},
    ("GET", "/v1/platform/policy"): {O, S, A, V}, ("PUT", "/v1/platform/policy"): {O, S},
    ("GET", "/v1/platform/policy/versions"): {O, S, A, V}, ("GET", "/v1/platform/policy/versions/{}"): {O, S, A, V},
    ("POST", "/v1/policies:evaluate"): {O, T, S, A}, ("POST", "/v1/policies:diff"): {O, T, S, A},
    ("POST", "/v1/policies:dry-run"): {O, T, S, A},
    ("GET", "/v1/tiers"): {O, V, T}, ("GET", "/v1/tiers/{}"): {O, V, T}, ("PATCH", "/v1/tiers/{}"): {O}, ("GET", "/v1/status"): {O, V},
    ("GET", "/v1/config"): {O}, ("GET", "/v1/loglevel"): {O}, ("PATCH", "/v1/loglevel"): {O}, ("GET", "/v1/backups"): {O},
    ("GET", "/v1/engines"): {O, V, T, E}, ("GET", "/v1/engines/{}"): {O, V, T, E},
    ("POST", "/v1/tiers/dram:drain"): {O},
    ("POST", "/v1/engines"): {E}, ("POST", "/v1/engines/{}:heartbeat"): {E}, ("DELETE", "/v1/engines/{}"): {E},
    ("POST", "/v1/engines/{}/pools"): {E}, ("DELETE", "/v1/pools/{}"): {E},
    ("POST", "/v1/lookups"): {E}, ("POST", "/v1/offloads"): {E}, ("POST", "/v1/restores"): {E},
    ("POST", "/v1/erasures"): {T, E}, ("GET", "/v1/erasures"): {T, E, A, V}, ("GET", "/v1/erasures/{}"): {T, E, A, V},
    ("GET", "/v1/events"): {O, T, A, V},
    ("POST", "/v1/erasures/{}:cancel"): {T}, ("GET", "/v1/erasures/{}/certificate"): {T, E, A},
    ("GET", "/v1/erasures/{}/certificate.txt"): {T, E, A}, ("GET", "/v1/certificates"): {T, A},
    ("GET", "/v1/certificates/{}"): {T, A}, ("GET", "/v1/certificates:export"): {T, A},
    ("POST", "/v1/certificates:verify"): None, ("GET", "/v1/audit/entries"): {T, A, O},
    ("GET", "/v1/audit/checkpoint"): {T, A, O}, ("GET", "/v1/audit/proof/inclusion"): {T, A, O},
    ("GET", "/v1/audit/proof/consistency"): {T, A, O}, ("POST", "/v1/audit:verify"): {T, A, O},
    ("GET", "/v1/audit:export"): {T, A, O}, ("GET", "/v1/operations"): {T, A, O}, ("GET", "/v1/operations/{}"): {T, A, O},
    ("POST", "/v1/operations/{}:cancel"): {T, A, O},
}
PREFIXES = {"tenants": "ten", "api-keys": "key", "sessions": "ses", "engines": "eng", "pools": "poo", "erasures": "era",
            "certificates": "crt", "operations": "opr"}


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
        cls.theirs = {role: cls.server.key(cls.other, role) for role in (T, E, A, V)}

    def routes(self, public=False):
        poll = {"/v1/events": "?poll=true&wait_seconds=0"}  # else the answer is a stream
        return [(m, example(p) + poll.get(p, ""), roles) for (m, p), roles in EXPECTED.items()
                if (roles is None) == public]

    def call(self, method, path, token, body=None, headers=None, **how):
        body = {} if method in ("POST", "PUT", "PATCH") and body is None else body
        kind = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        return self.server.call(method, path, token, body, {**kind, **(headers or {})}, **how)

    def test_the_table_of_routes_is_the_one_that_was_meant(self):
        table = {(row.method, row.pattern): row.roles or None for row in contract.route_table(rig.options.source)}
        self.assertEqual(table, EXPECTED)

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
            for role in {O, T, E, A, V, S} - roles:
                answer = self.call(method, path, self.keys[role])
                self.assertEqual((answer.status, answer.code), (403, "forbidden"), f"{role} {path}")

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

    def same_as_unknown(self, method, path, token, unknown, body=None, unknown_body=None):
        """Somebody else's id is answered exactly like one that does not exist."""
        theirs = self.call(method, path, token, body)
        nothing = self.call(method, unknown, token, unknown_body or body)
        self.assertIn(theirs.status, (404, 410), path)
        mine, other = theirs.json(), nothing.json()
        for document in (mine, other):
            del document["request_id"], document["instance"]
        self.assertEqual(mine, other, path)

    def test_ids_of_another_tenant_do_not_exist(self):
        session = self.server.session(self.keys[E])
        engine = Engine(self.server, self.keys[E]).open_pool()
        erased = {"scope": {"session_id": self.server.session(self.keys[T])}}
        erasure = self.call("POST", "/v1/erasures", self.keys[T], erased, headers={"Prefer": "wait=30"}).json()["id"]
        token, admin = self.theirs[E], self.theirs[T]
        for role in (T, E, A, V):
            self.same_as_unknown("GET", f"/v1/sessions/{session}", self.theirs[role], example("/v1/sessions/{}"))
            for tail in ("", "/certificate") if role != V else ():
                self.same_as_unknown("GET", f"/v1/erasures/{erasure}{tail}", self.theirs[role],
                                     example("/v1/erasures/{}") + tail)
        self.same_as_unknown("GET", f"/v1/tenants/{self.tenant}", admin, example("/v1/tenants/{}"))
        self.same_as_unknown("POST", f"/v1/tenants/{self.tenant}/api-keys", admin,
                             example("/v1/tenants/{}/api-keys"), {"name": "x", "roles": [E]})
        self.same_as_unknown("POST", f"/v1/engines/{engine.id}:heartbeat", token,
                             example("/v1/engines/{}:heartbeat"), {"seq": 1})
        self.same_as_unknown("DELETE", f"/v1/engines/{engine.id}", token, example("/v1/engines/{}"))
        self.same_as_unknown("DELETE", f"/v1/pools/{engine.pool}", token, example("/v1/pools/{}"))
        nothing = example("/v1/sessions/{}").split("/")[-1]
        for owner in (admin, token):
            self.same_as_unknown("POST", "/v1/erasures", owner, "/v1/erasures", {"scope": {"session_id": session}},
                                 {"scope": {"session_id": nothing}})
        blocks = {"session_id": session, "pool_id": engine.pool, "hashes": [hash_of("a")]}
        for route in ("/v1/lookups", "/v1/offloads", "/v1/restores"):
            body = blocks if route == "/v1/lookups" else {**blocks, "slots": [0]}
            self.same_as_unknown("POST", route, token, route, body, {**body, "session_id": nothing})
            own = {**body, "session_id": self.server.session(token)}
            self.same_as_unknown("POST", route, token, route, own, {**own, "pool_id": "poo_" + "0" * 26})
        self.assertEqual(self.server.call("GET", f"/v1/sessions/{session}", self.keys[E]).status, 200)

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
