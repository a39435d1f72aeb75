"""Secrets are planted in every input and looked for in every output: log in both formats, metrics, answers, the database.

What a client sends as a secret, or as something of its own that no log may keep: keys that are good and keys that are
not, other schemes, cookies, query strings, paths, bodies, external ids, reasons, labels. A control plants one where the
log does show text and finds it, so that the search is known to see."""
import base64
import hashlib
import http.client
import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import tempfile
import unittest

import contract
import rig


def plant(where):
    """A word that no program would write by itself."""
    return f"canary-{where}-{secrets.token_hex(8)}"


class Secrets(rig.Suite):
    server_options = ("--log.level=debug", "--rate.default=0")

    def request(self, method, path, headers, body=None, admin=False):
        port = self.server.admin_port if admin else self.server.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, str(answer.headers) + answer.read().decode(errors="replace")
        except (http.client.HTTPException, OSError) as error:
            return 0, f"{type(error).__name__}"
        finally:
            connection.close()

    def everywhere(self, planted, token):
        """Each input of each route. Returns what was answered."""
        answers = []
        common = {"Authorization": f"Bearer {token}", "Cookie": f"session={planted('cookie')}", "X-Api-Key": planted("header"),
                  "User-Agent": planted("agent"), "Referer": f"https://example.org/?{planted('referer')}",
                  "tracestate": f"a={planted('tracestate')}", "Content-Type": "application/json"}
        for row in contract.route_table(rig.options.source):
            admin = "api" not in row.listeners
            path = row.pattern.replace("{}", "x0")
            if path == "/v1/events":
                continue  # a stream without an end
            body = json.dumps({"name": planted("body"), "unknown": planted("member"), planted("key"): 1,
                               "external_id": planted("external"), "reason": planted("reason"),
                               "labels": {"a": planted("label")}, "scope": {"external_id": planted("scope")}}).encode()
            sends = row.method in ("POST", "PUT", "PATCH")
            answers.append(self.request(row.method, f"{path}?{planted('parameter')}={planted('value')}&limit={planted('limit')}",
                                        common, body if sends else None, admin))
            answers.append(self.request(row.method, path, common, body if sends else None, admin))
        for scheme in ("Basic ", "Bearer ", "Digest username=", "Token ", ""):
            answers.append(self.request("GET", "/v1/tiers", {"Authorization": scheme + planted("scheme")}))
        for path in (f"/{planted('path')}", f"/v1/sessions/{planted('id')}", f"/v1/sessions/%20{planted('escaped')}", f"/a/../{planted('dots')}",
                     f"http://{planted('host')}/v1/tiers", "/" + planted("long") + "x" * 2000):
            answers.append(self.request("GET", path, common))
        for name in ("If-Match", "If-None-Match", "Prefer", "Accept", "Origin", "Last-Event-ID", "traceparent", "Content-Type", "Accept-Language"):
            answers.append(self.request("GET", "/v1/tiers", {**common, name: planted(name.lower())}))
        answers.append(self.request(planted("method").upper(), "/v1/tiers", common))
        answers.append(self.request("POST", "/v1/sessions", common, b'{"model": ' + planted("broken").encode()))
        return answers

    def dump(self):
        """The database as text."""
        dump = rig.postgres_program("pg_dump")
        if dump is None:
            self.skipTest("pg_dump is not installed")
        where = pathlib.Path(self.server.state, "postgres.socket").read_text().strip()
        url = f"host={where} port=5432 user=kvrun dbname=postgres"
        return subprocess.run([dump, "--inserts", url], check=True, capture_output=True, text=True).stdout

    def look(self, words, outputs):
        """(word, output) of every find, as it is and in the encodings that hide it from a plain search."""
        found = []
        for word in words:
            raw = word.encode()
            forms = {word, word.upper(), base64.b64encode(raw).decode().rstrip("="), raw.hex(), base64.b32encode(raw).decode().rstrip("=")}
            found += [(word, name) for name, text in outputs.items() if any(form in text for form in forms)]
        return found

    def test_nothing_that_was_planted_comes_out(self):
        planted = {}

        def planted_at(where):
            word = plant(where)
            planted[word] = where
            return word

        tenant = self.server.tenant("canary")
        keys = {role: self.server.key(tenant, role) for role in ("engine", "tenant_admin")}
        good = [self.server.operator, *keys.values()]
        answers = []
        for token in (self.server.operator, keys["engine"], "kvrun_live_" + planted_at("token")):
            answers += self.everywhere(planted_at, token)
        self.good_requests(planted_at, keys, answers)
        statuses = {status for status, _ in answers}
        self.assertLessEqual({200, 400, 401, 403, 404}, statuses)
        self.assertGreater(len(planted), 500)
        outputs = {"log": "".join(self.server.log), "metrics": self.metrics(), "database": self.dump()}
        secret_parts = [key.split("_")[3] for key in good]
        self.assertEqual(self.look(list(planted), {"log": outputs["log"], "metrics": outputs["metrics"]}), [])
        self.assertEqual(self.look(secret_parts, outputs), [])
        # Error texts may say what is wrong, never what was sent.
        # `instance` is the caller's own path (RFC 9457).
        texts = "".join(re.sub(r'"instance":"[^"]*"', "", body) for status, body in answers if status >= 400)
        self.assertEqual(self.look(list(planted), {"answers": texts}), [])
        # In the database only the places that are meant for it: names and labels of what exists. The rest is sealed or hashed.
        allowed = {where for word, where in planted.items() if (word, "database") in self.look([word], {"database": outputs["database"]})}
        self.assertLessEqual(allowed, {"label"})
        for key in good:
            self.assertIn(hashlib.sha256(key.split("_")[3].encode()).hexdigest(), outputs["database"])  # the search can see

    def good_requests(self, planted, keys, answers):
        """What succeeds is kept somewhere: a session with the client's own id, an erasure with a reason."""
        made = self.server.call("POST", "/v1/sessions", keys["engine"], {
            "model": {"id": "m", "revision": "r"}, "external_id": planted("external"), "labels": {"a": planted("label")}})
        self.assertEqual(made.status, 201, made)
        done = self.server.call("POST", "/v1/erasures", keys["tenant_admin"], {
            "scope": {"session_id": made.json()["id"]}, "reason": planted("reason")},
            headers={"Prefer": "wait=30", "X-Request-Id": "request-1234"})
        self.assertIn(done.status, (200, 201, 202), done)
        answers.append((200, ""))

    def metrics(self):
        both = [self.server.call("GET", "/metrics", admin=True, headers={"Accept": accept}).body.decode()
                for accept in ("text/plain", "application/openmetrics-text")]
        return "".join(both)

    def test_the_search_finds_what_the_log_does_show(self):
        word = plant("request")
        self.server.call("GET", "/v1/tiers", self.server.operator, headers={"X-Request-Id": word})
        rig.wait_for("the line", lambda: self.look([word], {"log": "".join(self.server.log)}) == [(word, "log")])

    def test_a_line_has_its_fields_and_no_others(self):
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        self.server.call("GET", "/v1/tiers?limit=1", self.server.operator, check=False, headers={
            "traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Request-Id": "line-of-its-own"})
        line = rig.wait_for("the line", lambda: next((json.loads(l) for l in list(self.server.log) if "line-of-its-own" in l), None))
        self.assertEqual(set(line), {"ts", "level", "module", "event", "req", "trace_id", "method", "route", "status", "dur_us",
                                     "bytes", "key_id"})
        self.assertEqual((line["module"], line["event"], line["route"], line["trace_id"]), ("http", "request", "/v1/tiers", trace))
        self.assertRegex(line["key_id"], "^key_[0-9a-z]{26}$")
        self.assertNotIn(line["key_id"], self.server.operator)

    def test_probes_that_succeed_are_logged_now_and_then_and_failures_always(self):
        before = len(self.lines("/livez"))
        for _ in range(250):
            self.server.call("GET", "/livez", check=False)
        for _ in range(5):
            self.server.call("GET", "/v1/sessions/none", self.server.operator, check=False)
        rig.wait_for("every failure", lambda: len(self.lines("/v1/sessions/{}")) >= 5)
        self.assertLessEqual(len(self.lines("/livez")) - before, 4)

    def lines(self, route):
        return [line for line in list(self.server.log) if '"event":"request"' in line and f'"route":"{route}"' in line]


class Configuration(unittest.TestCase):
    """A database URL with a password, in a file, in logfmt; and wrong values of every key."""

    def test_wrong_values_are_not_repeated_and_logfmt_is_one_line_an_event(self):
        word = plant("config")
        folder = tempfile.mkdtemp(prefix="kvh.")
        try:
            path = pathlib.Path(folder, "db_url")
            path.write_text(f"postgresql://kvrun:{word}@127.0.0.1:1/kvrun?connect_timeout=1")
            path.chmod(0o600)
            environment = {"PATH": os.environ["PATH"], "KVRUN_DB_URL_FILE": str(path), "KVRUN_LOG_FORMAT": "logfmt",
                           "KVRUN_HTTP_LISTEN": "127.0.0.1:0", "KVRUN_HTTP_ADMIN_LISTEN": "127.0.0.1:0",
                           "KVRUN_DB_START_WAIT": "1s"}
            command = [rig.options.kvrun, "serve", f"--state.dir={folder}/state"]
            try:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
                output = done.stdout + done.stderr
                self.assertNotEqual(done.returncode, 0)
            except subprocess.TimeoutExpired as late:
                output = (late.stdout or b"").decode() + (late.stderr or b"").decode()
            shown = subprocess.run([rig.options.kvrun, "config", "show"], env=environment, capture_output=True, text=True, check=False)
            self.assertEqual(self.holders(word, output + shown.stdout + shown.stderr), [])
            self.assertRegex(output, r"(?m)^ts=\S+Z level=\w+ module=\w+ event=\S+")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for key in ("DB_URL", "HTTP_SOCKET", "STATE_DIR", "ROOT_PATH"):
            done = subprocess.run([rig.options.kvrun, "config", "show"], env={"PATH": os.environ["PATH"], f"KVRUN_{key}": word},
                                  capture_output=True, text=True, check=False)
            self.assertEqual(self.holders(word, done.stderr), [], key)

    @staticmethod
    def holders(word, text):
        return [line for line in text.splitlines() if re.search(re.escape(word), line)]


if __name__ == "__main__":
    rig.main(__name__)
