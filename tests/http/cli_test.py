"""The command line: the real program against the real server, and against one that answers what it is told."""
import ctypes
import http.server
import json
import os
import pathlib
import pty
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import unittest

import rig


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVRUN") and k != "NO_COLOR"}
    return {**clean, **more}


def kvrun(*words, cwd="/tmp", stdin=None, timeout=60, preexec=None, **variables):
    done = subprocess.run([rig.options.kvrun, *words], capture_output=True, text=True, timeout=timeout, cwd=cwd,
                          input=stdin, stdin=subprocess.DEVNULL if stdin is None else None, preexec_fn=preexec,
                          env=environment(**variables))
    return done


class Canned(http.server.BaseHTTPRequestHandler):
    """Answers what the test put under the path; remembers what was asked."""

    protocol_version = "HTTP/1.1"
    answers = {}
    asked = []

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        Canned.asked.append((self.command, self.path, dict(self.headers), self.rfile.read(length).decode()))
        status, body, headers = Canned.answers.get(self.path.split("?")[0], (404, {"code": "not_found"}, {}))
        body = body(self.path) if callable(body) else body
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "X-Request-Id": "req_canned", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, *_):
        pass


class Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """A caller that was ended by a signal is no failure of this side."""


class WithCanned(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.http = Quiet(("127.0.0.1", 0), Canned)
        cls.thread = threading.Thread(target=cls.http.serve_forever, daemon=True)
        cls.thread.start()

    @classmethod
    def tearDownClass(cls):
        cls.http.shutdown()
        cls.http.server_close()

    def setUp(self):
        Canned.answers, Canned.asked = {}, []
        self.folder = tempfile.mkdtemp(prefix="kvcli.")
        self.addCleanup(shutil.rmtree, self.folder)

    def kvrun(self, *words, **how):
        how.setdefault("KVRUN_ADDR", "127.0.0.1:%d" % self.http.server_port)
        how.setdefault("KVRUN_TOKEN", "kvrun_live_secret_of_the_test")
        how.setdefault("cwd", self.folder)
        return kvrun(*words, **how)

    def problem(self, status, code, **more):
        return (status, {"code": code, "title": "T", "detail": "the detail", "status": status, **more}, {})


class Requests(WithCanned):
    def test_every_code_of_the_registry_exits_as_documented(self):
        registry = pathlib.Path(rig.options.source, "api/errors.def").read_text()
        rows = re.findall(r"^KV_ERROR\((\w+),\s*(\d+),\s*(\w+)", registry, re.M)
        seen = set()
        for name, status, kind in rows:
            Canned.answers["/v1/tenants/ten_1"] = self.problem(int(status), name.lower())
            done = self.kvrun("tenants", "get", "ten_1")
            self.assertIn(done.returncode, range(1, 8), name)
            self.assertIn(f"({name.lower()})", done.stderr)
            self.assertEqual(done.stdout, "")
            if kind == "INTEGRITY":
                self.assertEqual(done.returncode, 7, name)
            seen.add(done.returncode)
        self.assertEqual(seen, {1, 2, 3, 4, 5, 6, 7})

    def test_an_unknown_code_goes_by_its_status(self):
        for status, code in ((418, 2), (404, 3), (403, 4), (409, 5), (503, 6), (500, 1)):
            Canned.answers["/v1/tenants/ten_1"] = self.problem(status, "of_tomorrow")
            self.assertEqual(self.kvrun("tenants", "get", "ten_1").returncode, code, status)
        Canned.answers["/v1/tenants/ten_1"] = (502, b"<html>bad gateway</html>", {"Content-Type": "text/html"})
        done = self.kvrun("tenants", "get", "ten_1")
        self.assertEqual((done.returncode, done.stderr), (6, "kvrun: the server answered 502\n"))

    def test_nobody_there_is_6_and_a_bad_address_is_2(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            done = self.kvrun("tiers", "ls", KVRUN_ADDR="127.0.0.1:%d" % free.getsockname()[1])
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertEqual(self.kvrun("tiers", "ls", KVRUN_ADDR="x" * 300).returncode, 2)

    def test_the_key_goes_along_and_is_shown_nowhere(self):
        Canned.answers["/v1/status"] = (200, {"state": "up"}, {"Server-Timing": "db;dur=1"})
        done = self.kvrun("status", "-v")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(Canned.asked[0][2]["Authorization"], "Bearer kvrun_live_secret_of_the_test")
        self.assertNotIn("secret_of_the_test", done.stdout + done.stderr)
        self.assertIn("req_canned", done.stderr)
        self.assertIn("db;dur=1", done.stderr)
        refused = self.kvrun("status", "--token", "kvrun_live_on_the_command_line")
        self.assertEqual(refused.returncode, 2)
        self.assertNotIn("on_the_command_line", refused.stderr)

    def test_keys_come_from_files_too_and_open_ones_are_pointed_at(self):
        Canned.answers["/v1/status"] = (200, {"state": "up"}, {})
        file = pathlib.Path(self.folder, "key")
        for text in ("kvrun_live_a\n", "kvrun_live_a\r\n", "kvrun_live_a"):
            file.write_text(text)
            file.chmod(0o600)
            done = self.kvrun("status", "--token-file", str(file))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(Canned.asked[-1][2]["Authorization"], "Bearer kvrun_live_a")
        file.chmod(0o644)
        done = self.kvrun("status", KVRUN_TOKEN="", KVRUN_TOKEN_FILE=str(file))
        self.assertEqual(done.returncode, 0)
        self.assertIn("chmod 600", done.stderr)
        for text in ("", "two words", "x\x01y", "x" * 200):
            file.write_text(text)
            self.assertEqual(self.kvrun("status", "--token-file", str(file)).returncode, 2, repr(text))
        self.assertEqual(self.kvrun("status", "--token-file", "/nowhere").returncode, 2)

    def test_unix_sockets_are_addresses(self):
        path = os.path.join(self.folder, "s")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)

        def once():
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n"
                               b'{"state":"u"}')
            connection.close()

        thread = threading.Thread(target=once)
        thread.start()
        done = self.kvrun("status", "--addr", f"unix://{path}", "-o", "jsonl")
        thread.join()
        listener.close()
        self.assertEqual((done.returncode, done.stdout), (0, '{"state":"u"}\n'), done.stderr)

    def pages(self, path):
        after = re.search(r"cursor=(\w+)", path)
        begin = int(after.group(1)) if after else 0
        limit = int(re.search(r"limit=(\d+)", path).group(1))
        items = [{"id": f"ses_{n}", "state": "active"} for n in range(begin, min(begin + limit, 450))]
        end = begin + len(items)
        return {"data": items, "next_cursor": str(end) if end < 450 else None}

    def test_lists_follow_their_pages_to_the_end_or_the_limit(self):
        Canned.answers["/v1/sessions"] = (200, self.pages, {})
        done = self.kvrun("sessions", "ls", "-o", "id", "--state", "active")
        self.assertEqual(done.stdout.split(), [f"ses_{n}" for n in range(450)])
        self.assertEqual(len(Canned.asked), 3)
        self.assertTrue(all("state=active" in asked[1] for asked in Canned.asked), Canned.asked)
        done = self.kvrun("sessions", "ls", "--json", "--limit", "201")
        self.assertEqual(len(json.loads(done.stdout)), 201)
        self.assertIn("limit=1", Canned.asked[-1][1])
        table = self.kvrun("sessions", "ls").stdout.splitlines()
        self.assertEqual((len(table), table[0].split()[:2]), (451, ["ID", "STATE"]))

    def test_a_list_that_breaks_off_is_no_success(self):
        Canned.answers["/v1/sessions"] = (200, {"no": "list"}, {})
        self.assertEqual(self.kvrun("sessions", "ls").returncode, 1)

    def test_text_of_others_is_cleaned_in_tables_and_errors(self):
        evil = "\x1b[2J\x9b31m\u202eevil"
        Canned.answers["/v1/tenants"] = (200, {"data": [{"id": "ten_1", "name": evil}], "next_cursor": None}, {})
        done = self.kvrun("tenants", "ls")
        self.assertIn("?[2J?31m?evil", done.stdout)
        self.assertEqual(json.loads(self.kvrun("tenants", "ls", "--json").stdout)[0]["name"], evil)
        Canned.answers["/v1/tenants/ten_1"] = (400, {"code": "invalid_request", "detail": evil, "hint": evil}, {})
        self.assertNotIn("\x1b", self.kvrun("tenants", "get", "ten_1").stderr)

    def test_what_cannot_be_undone_needs_a_yes(self):
        for words in (["sessions", "rm", "ses_1"], ["erase", "ses_1"], ["erase", "--label", "user=7"],
                      ["tenants", "delete", "ten_1"], ["keys", "revoke", "key_1"]):
            done = self.kvrun(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn("--yes", done.stderr)
        self.assertEqual(Canned.asked, [])
        Canned.answers["/v1/sessions/ses_1"] = (202, {"id": "era_1", "state": "requested"}, {})
        self.assertEqual(self.kvrun("sessions", "rm", "ses_1", "--yes").returncode, 0)
        self.assertEqual(self.kvrun("sessions", "rm", "ses_1", "--dry-run").returncode, 0)
        self.assertEqual([asked[:2] for asked in Canned.asked],
                         [("DELETE", "/v1/sessions/ses_1"), ("DELETE", "/v1/sessions/ses_1?dry_run=true")])

    def test_erase_takes_exactly_one_scope(self):
        for words in ([], ["ses_1", "--label", "a=b"], ["--external-id", "x", "--tenant", "ten_1"],
                      ["ses_1", "-o", "cert.txt"]):
            self.assertEqual(self.kvrun("erase", "--yes", *words).returncode, 2, words)
        self.assertEqual(Canned.asked, [])

    def test_idempotency_keys_and_revisions_go_along(self):
        Canned.answers["/v1/tenants"] = (201, {"id": "ten_1"}, {})
        Canned.answers["/v1/tenants/ten_1"] = (200, {"id": "ten_1"}, {})
        self.kvrun("tenants", "create", "acme", "--idempotency-key", "once")
        self.assertEqual(Canned.asked[-1][2]["Idempotency-Key"], "once")
        self.kvrun("tenants", "update", "ten_1", "--display-name", "A", "--if-match", '"3.0"')
        method, _, headers, body = Canned.asked[-1]
        self.assertEqual((method, headers["If-Match"], headers["Content-Type"], json.loads(body)),
                         ("PATCH", '"3.0"', "application/merge-patch+json", {"display_name": "A"}))

    def test_a_policy_is_put_in_the_place_of_the_one_that_was_seen(self):
        Canned.answers["/v1/tenants/ten_1/policy"] = (200, {"version": 4}, {"ETag": '"4.abcd"'})
        pathlib.Path(self.folder, "p.json").write_text('{"a": 1}')
        done = self.kvrun("policies", "set", "p.json", "--tenant", "ten_1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([asked[0] for asked in Canned.asked], ["GET", "PUT"])
        self.assertEqual((Canned.asked[1][2]["If-Match"], json.loads(Canned.asked[1][3])), ('"4.abcd"', {"a": 1}))
        pathlib.Path(self.folder, "p.json").write_text('{"a": 1, "a": 2}')
        self.assertEqual(self.kvrun("policies", "set", "p.json", "--tenant", "ten_1").returncode, 2)
        self.assertEqual(len(Canned.asked), 2)

    def test_waiting_ends_as_the_operation_does(self):
        path = "/v1/operations/opr_1"
        Canned.answers[path] = (200, {"id": "opr_1", "done": True, "response": {}}, {})
        self.assertEqual(self.kvrun("ops", "wait", "opr_1").returncode, 0)
        for code, status, exit_code in (("internal", 500, 1), ("not_found", 404, 3), ("busy", 503, 6),
                                        ("corrupt", 500, 7), ("irreversible", 409, 5)):
            Canned.answers[path] = (200, {"id": "opr_1", "done": True,
                                          "error": {"code": code, "status": status, "detail": "why"}}, {})
            done = self.kvrun("ops", "wait", "opr_1")
            self.assertEqual(done.returncode, exit_code, code)
            self.assertIn("why", done.stderr)
        Canned.answers[path] = (200, {"id": "opr_1", "done": False}, {})
        done = self.kvrun("ops", "wait", "opr_1", "--timeout", "1s")
        self.assertEqual(done.returncode, 6)
        self.assertIn("goes on", done.stderr)

    def test_waiting_for_an_erasure_ends_as_it_does(self):
        Canned.answers["/v1/erasures"] = (202, {"id": "era_1", "state": "requested"}, {})
        for state, code in (("certified", 0), ("quarantined", 7), ("blocked_hold", 5), ("canceled", 5)):
            Canned.answers["/v1/erasures/era_1"] = (200, {"id": "era_1", "state": state}, {})
            done = self.kvrun("erase", "ses_1", "--yes", "--wait", "-o", "jsonl")
            self.assertEqual((done.returncode, json.loads(done.stdout)["state"]), (code, state), done.stderr)

    def test_a_proof_ends_as_its_verdict_says(self):
        for ok, verdict, code in ((True, "nothing_left", 0), (False, "opened", 7), (False, "no_control", 7)):
            Canned.answers["/v1/erasures/era_1:prove"] = (202, {"id": "opr_1", "done": False}, {})
            Canned.answers["/v1/operations/opr_1"] = (200, {"id": "opr_1", "state": "succeeded", "done": True,
                                                            "response": {"ok": ok, "verdict": verdict}}, {})
            done = self.kvrun("erasures", "prove", "era_1", "--samples", "64")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(verdict, done.stdout)
        Canned.answers["/v1/erasures/era_1:prove"] = self.problem(409, "not_yet")
        self.assertNotEqual(self.kvrun("erasures", "prove", "era_1").returncode, 0)

    def test_a_new_secret_is_shown_or_kept_never_both(self):
        Canned.answers["/v1/tenants/ten_1/api-keys"] = (201, {"id": "key_1", "secret": "kvrun_live_new"}, {})
        done = self.kvrun("keys", "create", "engine", "--role", "engine", "--tenant", "ten_1")
        self.assertIn("kvrun_live_new", done.stdout)
        done = self.kvrun("keys", "create", "engine", "--role", "engine", "--secret-file", "k", KVRUN_TENANT="ten_1")
        file = pathlib.Path(self.folder, "k")
        self.assertEqual((done.returncode, file.read_text(), file.stat().st_mode & 0o777),
                         (0, "kvrun_live_new\n", 0o600), done.stderr)
        self.assertNotIn("kvrun_live_new", done.stdout + done.stderr)
        asked = len(Canned.asked)
        done = self.kvrun("keys", "create", "engine", "--role", "engine", "--secret-file", "k", KVRUN_TENANT="ten_1")
        self.assertEqual((done.returncode, len(Canned.asked)), (2, asked))  # before there is a secret

    def test_downloads_are_whole_or_not_there(self):
        Canned.answers["/v1/audit:export"] = (200, b"a tar archive", {"Content-Type": "application/x-tar"})
        done = self.kvrun("audit", "export", "-o", "log.tar")
        file = pathlib.Path(self.folder, "log.tar")
        self.assertEqual((done.returncode, file.read_bytes()), (0, b"a tar archive"), done.stderr)
        self.assertEqual(self.kvrun("audit", "export", "-o", "log.tar").returncode, 2)  # it is there already
        Canned.answers["/v1/audit:export"] = self.problem(403, "forbidden")
        self.assertEqual(self.kvrun("audit", "export", "-o", "other.tar").returncode, 4)
        self.assertFalse(pathlib.Path(self.folder, "other.tar").exists())

    def test_a_canceled_operation_is_no_success(self):
        Canned.answers["/v1/operations/opr_1"] = (200, {"id": "opr_1", "done": True, "state": "canceled"}, {})
        self.assertEqual(self.kvrun("ops", "wait", "opr_1").returncode, 1)

    def test_a_judgement_is_an_exit_code(self):
        for decision, code in (("allow", 0), ("deny", 1)):
            Canned.answers["/v1/policies:evaluate"] = (200, {"decision": decision, "reasons": []}, {})
            done = self.kvrun("policies", "eval", "--action", "offload", "--model", "m", "--tenant", "ten_1")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(json.loads(Canned.asked[-1][3]),
                             {"ask": {"action": "offload", "model": "m"}, "tenant_id": "ten_1"})
        self.assertEqual(self.kvrun("policies", "eval").returncode, 2)

    def test_events_are_read_as_they_come_and_counted(self):
        stream = (b": hb\n\nid: a-1\nevent: session.created\ndata: {\"id\":\"a-1\",\"type\":\"session.created\"}\n\n"
                  b"id: a-2\r\nevent: erasure.state\r\ndata: {\"id\":\"a-2\",\"type\":\"erasure.state\"}\r\n\r\n"
                  b"id: a-3\nevent: bye\ndata: {\"reason\":\"time\"}\n\n")
        Canned.answers["/v1/events"] = (200, stream, {"Content-Type": "text/event-stream"})
        done = self.kvrun("events", "--follow", "--count", "2", "-o", "jsonl", "--after", "a-0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([json.loads(line)["id"] for line in done.stdout.splitlines()], ["a-1", "a-2"])
        self.assertIn("after=a-0", Canned.asked[0][1])
        done = self.kvrun("events", "--follow", "--count", "3", "-o", "jsonl")  # after bye it comes back
        self.assertEqual((done.returncode, len(done.stdout.splitlines())), (0, 3), done.stderr)
        self.assertIn("after=a-3", Canned.asked[-1][1])

    def test_hints_of_problems_are_commands(self):
        text = pathlib.Path(rig.options.source, "server/http/problem_text.def").read_text()
        hints = set(re.findall(r"kvrun ((?:[a-z]+ ?){1,3})", text))
        self.assertTrue(hints)
        for hint in hints:
            words = hint.split()
            known = any(self.kvrun("help", *words[:n]).returncode == 0 for n in range(len(words), 0, -1))
            self.assertTrue(known, f"kvrun {hint}")

    def test_policy_vectors_are_run(self):
        vectors = pathlib.Path(rig.options.source, "policies/vectors")
        done = self.kvrun("policies", "test", str(vectors))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"^\d+ cases of \d+ files, 0 failed\n$")
        changed = pathlib.Path(self.folder, "changed.json")
        text = (vectors / "example.json").read_text()
        self.assertIn('"allow"', text)
        changed.write_text(text.replace('"allow"', '"deny"', 1))
        done = self.kvrun("policies", "test", str(changed))
        self.assertEqual((done.returncode, done.stdout[:4]), (1, "FAIL"), done.stderr)
        self.assertEqual(self.kvrun("policies", "test", "/nowhere").returncode, 3)
        changed.write_text("no table")
        self.assertEqual(self.kvrun("policies", "test", str(changed)).returncode, 2)

    def test_quiet_says_nothing(self):
        Canned.answers["/v1/status"] = (200, {"state": "up"}, {})
        done = self.kvrun("status", "-q")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_signal_ends_it(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            Canned.answers["/v1/operations/opr_1"] = (200, {"id": "opr_1", "done": False}, {})
            asked = len(Canned.asked)
            process = subprocess.Popen([rig.options.kvrun, "ops", "wait", "opr_1"], stdout=subprocess.DEVNULL,
                                       env=environment(KVRUN_ADDR="127.0.0.1:%d" % self.http.server_port))
            rig.wait_for("the first question", lambda: len(Canned.asked) > asked)
            process.send_signal(number)
            self.assertEqual(process.wait(20), -number)  # a shell says 128 + number


class OnATerminal(WithCanned):
    def terminal(self, *words, answer=None):
        """The program with a terminal on all three; what it wrote, and its exit code."""
        main, side = pty.openpty()
        process = subprocess.Popen([rig.options.kvrun, *words], stdin=side, stdout=side, stderr=side, cwd=self.folder,
                                   env=environment(KVRUN_ADDR="127.0.0.1:%d" % self.http.server_port, TERM="xterm"))
        os.close(side)
        text = b""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if select.select([main], [], [], 0.1)[0]:
                try:
                    piece = os.read(main, 65536)
                except OSError:
                    break
                text += piece
                if answer is not None and b"to go on:" in text:
                    os.write(main, answer)
                    answer = None
        os.close(main)
        return text.decode(), process.wait(20)

    def test_times_are_relative_sizes_have_units_and_titles_are_bold(self):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - 3 * 3600))
        Canned.answers["/v1/tenants"] = (200, {"data": [{"id": "ten_1", "name": "a", "created_at": stamp}],
                                               "next_cursor": None}, {})
        Canned.answers["/v1/tiers"] = (200, {"data": [{"name": "dram", "used_bytes": 1536}], "next_cursor": None}, {})
        text, code = self.terminal("tenants", "ls")
        self.assertEqual(code, 0)
        self.assertIn("3h ago", text)
        self.assertIn("\x1b[1m", text)
        self.assertNotIn("\x1b", self.terminal("tenants", "ls", "--no-color")[0])
        self.assertIn("1.5 KiB", self.terminal("tiers", "ls")[0])
        piped = self.kvrun("tenants", "ls").stdout  # the control
        self.assertIn(stamp, piped)
        self.assertNotIn("\x1b", piped)

    def test_the_name_is_typed_to_go_on(self):
        Canned.answers["/v1/sessions/ses_1"] = (202, {"id": "era_1", "state": "requested"}, {})
        text, code = self.terminal("sessions", "rm", "ses_1", answer=b"ses_2\n")
        self.assertEqual((code, Canned.asked), (2, []), text)
        text, code = self.terminal("sessions", "rm", "ses_1", answer=b"ses_1\n")
        self.assertEqual((code, len(Canned.asked)), (0, 1), text)

    def test_json_on_a_terminal_is_ascii(self):
        Canned.answers["/v1/status"] = (200, {"name": "\x9b31m\u202e"}, {})
        text, code = self.terminal("status", "--json")
        self.assertEqual(code, 0)
        self.assertIn("\\u009B31m\\u202E".lower(), text.lower())


class Completion(unittest.TestCase):
    def complete(self, *words):
        script = kvrun("completion", "bash").stdout
        line = f"COMP_WORDS=(kvrun {' '.join(words)}); COMP_CWORD={len(words)}; _kvrun; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "-c", script + "\n" + line], capture_output=True, text=True, timeout=20)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_knows_commands_groups_flags_and_words(self):
        self.assertIn("tenants", self.complete('""'))
        self.assertEqual(self.complete("tena"), ["tenants"])
        self.assertEqual(sorted(self.complete("ops", '""')), ["cancel", "get", "ls", "wait"])
        self.assertEqual(self.complete("sessions", "exp"), ["explain"])
        self.assertIn("--external-id", self.complete("sessions", "ls", "--ex"))
        self.assertIn("--token-file", self.complete("tiers", "ls", "--to"))
        self.assertEqual(self.complete("erase", "--basis", "gd"), ["gdpr_art17"])
        self.assertEqual(self.complete("tiers", "ls", "-o", "js"), ["json", "jsonl"])

    def test_every_command_is_in_every_script_and_in_the_manual(self):
        names = set()
        for line in kvrun("help").stdout.split("\n\n")[1].splitlines():
            names.add(line.split()[0])
        self.assertGreater(len(names), 20)
        for words in (["completion", "bash"], ["completion", "zsh"], ["completion", "fish"], ["man"]):
            text = kvrun(*words).stdout
            for name in names:
                self.assertRegex(text, rf"\b{name}\b", words)

    def test_the_manual_is_roff(self):
        if shutil.which("groff") is None:
            self.skipTest("groff is not installed")
        text = kvrun("man").stdout
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=text, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")

    def test_a_misspelt_command_is_told_the_nearest_one(self):
        for words, nearest in (("sesions ls", "sessions"), ("tenant", "tenants"), ("versin", "version"), ("sessions crete", "sessions create")):
            answer = kvrun(*words.split())
            self.assertEqual(2, answer.returncode, words)
            self.assertIn(f"did you mean {nearest}?", answer.stderr)
        self.assertNotIn("did you mean", kvrun("zzzzzz").stderr)

    def test_help_is_there_for_every_command(self):
        for line in kvrun("man").stdout.splitlines():
            if line.startswith('.SS "kvrun '):
                words = [word for word in re.sub(r'[\\"]', "", line)[len(".SS kvrun "):].split() if word.islower()]
                self.assertIn("usage: kvrun " + words[0], kvrun("help", *words).stdout, line)


class Doctor(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvcli.")
        self.addCleanup(shutil.rmtree, self.folder)
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            two.bind(("127.0.0.1", 0))
            self.listen, self.admin = one.getsockname()[1], two.getsockname()[1]

    def findings(self, *flags, **how):
        done = kvrun("doctor", "--json", f"--state.dir={self.folder}", f"--http.listen=127.0.0.1:{self.listen}",
                     f"--http.admin_listen=127.0.0.1:{self.admin}", *flags, cwd=self.folder, **how)
        answer = json.loads(done.stdout)
        found = {finding["check"]: finding for finding in answer["checks"]}
        for finding in answer["checks"]:
            self.assertTrue(finding["state"] == "ok" or finding["fix"], finding)  # every finding names its fix
        self.assertEqual(done.returncode, 0 if answer["ok"] else 1)
        self.assertEqual(answer["ok"], all(finding["state"] != "fail" for finding in answer["checks"]))
        return found

    def state(self, check, *flags, **how):
        return self.findings(*flags, **how)[check]["state"]

    def test_a_port_that_is_taken(self):
        self.assertEqual(self.state("port"), "ok")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", self.listen))
            taken.listen(1)
            self.assertEqual(self.state("port"), "fail")
        self.assertEqual(self.state("server"), "warn")

    def test_limits_of_the_process(self):
        def few():
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

        self.assertEqual(self.state("open_files", "--http.connections=100"), "ok")
        self.assertEqual(self.state("open_files", preexec=few), "warn")

    def test_what_the_server_takes_from_itself(self):
        secret = ctypes.CDLL(None).syscall(447, os.O_CLOEXEC)  # memfd_secret
        if secret >= 0:
            os.close(secret)
        found = self.findings()
        self.assertEqual(found["secret_memory"]["state"], "ok" if secret >= 0 else "warn")
        sanitized = any(mark in pathlib.Path(rig.options.kvrun).read_bytes() for mark in (b"__asan_init", b"__tsan_init"))
        self.assertEqual(found["freed_memory"]["state"], "warn" if sanitized else "ok")
        self.assertIn(found["seccomp"]["state"], ("ok", "warn"))
        self.assertEqual(self.state("seccomp", "--hardening.seccomp=off"), "warn")

    def test_the_nvme_tier(self):
        self.assertEqual(self.state("nvme"), "ok")
        self.assertEqual(self.state("nvme_space", "--tiers.nvme.bytes=1MiB"), "ok")
        self.assertEqual(self.state("nvme_space", "--tiers.nvme.bytes=900TiB"), "fail")
        self.assertEqual(self.state("nvme", "--tiers.nvme.bytes=1MiB", "--tiers.nvme.path=/proc/x"), "fail")
        self.assertEqual([name for name in os.listdir(self.folder) if "doctor" in name], [])

    def test_where_the_root_lies(self):
        self.assertEqual(self.state("root_place"), "warn")
        os.mkdir(os.path.join(self.folder, "data"))
        self.assertEqual(self.state("root_place", f"--root.path={self.folder}/data/root"), "fail")
        self.assertEqual(self.state("root_place", "--root.path=/proc/root-of-erasure"), "ok")
        self.assertEqual(self.state("root_place", "--root.provider=memory"), "warn")

    def test_where_the_anchor_lies(self):
        file = pathlib.Path(self.folder, "anchor")
        self.assertEqual(self.state("anchor"), "ok")
        self.assertEqual(self.state("anchor", f"--anchor.file={file}"), "fail")
        file.touch()
        self.assertEqual(self.state("anchor", f"--anchor.file={file}"), "warn")
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as other:
            self.assertEqual(self.state("anchor", f"--anchor.file={other.name}"), "ok")
            self.assertEqual(self.state("anchor", f"--anchor.file={other.name}", "--root.path=/dev/shm/root"), "warn")

    def test_files_that_others_can_read(self):
        file = pathlib.Path(self.folder, "operator.key")
        file.write_text("x")
        file.chmod(0o600)
        self.assertEqual(self.state("operator_key"), "ok")
        file.chmod(0o640)
        self.assertEqual(self.state("operator_key"), "fail")
        self.assertEqual(self.state("token_file", KVRUN_TOKEN_FILE=str(file)), "fail")
        self.assertEqual(self.state("token_file", KVRUN_TOKEN_FILE="/nowhere"), "fail")

    def test_how_long_the_certificate_holds(self):
        if shutil.which("openssl") is None:
            self.skipTest("openssl is not installed")
        key, cert = os.path.join(self.folder, "key.pem"), os.path.join(self.folder, "cert.pem")
        flags = (f"--http.tls.cert_file={cert}", f"--http.tls.key_file={key}")
        for days, state in ((90, "ok"), (5, "warn")):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=localhost", "-days",
                            str(days), "-keyout", key, "-out", cert], check=True, capture_output=True)
            os.chmod(key, 0o600)
            found = self.findings(*flags)
            self.assertEqual((found["tls_cert"]["state"], found["tls_key"]["state"]), (state, "ok"))
        os.chmod(key, 0o644)
        self.assertEqual(self.state("tls_key", *flags), "fail")
        pathlib.Path(cert).write_text("no certificate")
        self.assertEqual(self.state("tls_cert", *flags), "fail")

    def test_memory_that_is_not_there(self):
        self.assertEqual(self.state("memory", "--tiers.dram.bytes=1MiB"), "ok")
        self.assertEqual(self.state("memory", "--tiers.dram.bytes=1024GiB"), "fail")

    def test_a_database_that_does_not_answer(self):
        self.assertEqual(self.state("database"), "ok")
        found = self.findings(f"--db.url=postgresql://u:hunter2@127.0.0.1:{self.admin}/x")
        self.assertEqual(found["database"]["state"], "fail")
        self.assertNotIn("hunter2", json.dumps(found))

    def test_text_and_wrong_use(self):
        done = kvrun("doctor", f"--state.dir={self.folder}", cwd=self.folder)
        self.assertRegex(done.stdout, r"\n\d+ ok, \d+ to look at, \d+ wrong\n$")
        self.assertEqual(kvrun("doctor", "--jsn").returncode, 2)


class RealServer(rig.Suite):
    """The tour of a tenant through the program alone."""

    def kvrun(self, *words, key=None, **how):
        return kvrun(*words, KVRUN_ADDR=f"127.0.0.1:{self.server.port}", KVRUN_TOKEN=key or self.server.operator,
                     cwd=self.server.folder, **how)

    def json(self, *words, **how):
        done = self.kvrun(*words, "--json", **how)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_doctor_sees_the_server_that_runs(self):
        done = kvrun("doctor", "--json", f"--state.dir={self.server.state}",
                     f"--http.listen=127.0.0.1:{self.server.port}",
                     f"--http.admin_listen=127.0.0.1:{self.server.admin_port}", cwd=self.server.folder)
        found = {finding["check"]: finding["state"] for finding in json.loads(done.stdout)["checks"]}
        self.assertEqual((found["server"], found["port"], found["root_file"]), ("ok", "ok", "ok"), found)

    def test_doctor_asks_the_database(self):
        where = pathlib.Path(self.server.state, "postgres.socket").read_text().strip()
        url = f"host={where} port=5432 user=kvrun dbname=postgres"

        def states(text):
            done = kvrun("doctor", "--json", f"--state.dir={self.server.folder}", f"--db.url={text}")
            return {finding["check"]: finding["state"] for finding in json.loads(done.stdout)["checks"]}

        found = states(url)
        self.assertEqual([found[name] for name in ("database", "db_version", "db_commit", "db_schema")], ["ok"] * 4, found)
        self.assertEqual(states(url + " options='-c synchronous_commit=off'")["db_commit"], "warn")
        self.assertEqual(states(url.replace("dbname=postgres", "dbname=template1"))["db_schema"], "fail")
        root = pathlib.Path(self.server.cluster_folder, "data", "root")
        done = kvrun("doctor", "--json", f"--db.url={url}", f"--root.path={root}")
        self.assertIn("root_in_db", [finding["check"] for finding in json.loads(done.stdout)["checks"]])

    def test_tenants_keys_sessions_and_erasure(self):
        tenant = self.json("tenants", "create", "acme")["id"]
        self.assertEqual(self.kvrun("tenants", "create", "acme").returncode, 5)
        pathlib.Path(self.server.folder, "narrow.json").write_text('{"tiers": {"dram": {}}}', encoding="ascii")
        pathlib.Path(self.server.folder, "wrong.json").write_text('{"tiers": {"tape": {}}}', encoding="ascii")
        narrow = self.json("tenants", "create", "narrow", "--label", "a=b", "--policy", "narrow.json")
        self.assertEqual(narrow["labels"], {"a": "b"})
        self.assertEqual(self.json("policies", "get", "--tenant", narrow["id"])["policy"], {"tiers": {"dram": {}}})
        for file in ("wrong.json", "nowhere.json"):
            done = self.kvrun("tenants", "create", "wrong", "--policy", file)
            self.assertNotEqual(done.returncode, 0, file)
        would = self.json("tenants", "create", "wrong", "--policy", "narrow.json", "--dry-run")
        self.assertEqual(would["would"]["name"], "wrong")
        self.assertEqual(self.json("tenants", "get", tenant)["name"], "acme")
        self.assertEqual(self.kvrun("tenants", "get", tenant[:-1] + ("0" if tenant[-1] != "0" else "1")).returncode, 3)
        secret = self.json("keys", "create", "admin", "--role", "tenant_admin", "--tenant", tenant)["secret"]
        self.assertEqual(self.kvrun("tenants", "create", "b", key=secret).returncode, 4)
        self.assertEqual(self.kvrun("tiers", "ls", key="kvrun_live_nobody").returncode, 4)
        session = self.json("sessions", "create", "--model", "m", "--revision", "r", key=secret)["id"]
        self.assertEqual(self.json("sessions", "get", session, key=secret)["id"], session)
        done = self.kvrun("erase", session, "--yes", "--wait", "--basis", "gdpr_art17", "-o", "cert.txt", "-o", "json",
                          key=secret)
        self.assertEqual((done.returncode, json.loads(done.stdout)["state"]), (0, "certified"), done.stderr)
        erasure = json.loads(done.stdout)["id"]
        self.assertEqual(self.kvrun("sessions", "get", session, key=secret).returncode, 3)
        proof = self.json("erasures", "prove", erasure, key=secret)
        self.assertEqual((proof["ok"], proof["verdict"], proof["certificate_ok"]), (True, "nothing_left", True))
        os.mkdir(os.path.join(self.server.folder, "c"))
        done = self.kvrun("certs", "get", erasure, "-o", "c/cert.txt", "--with-keys", key=secret)
        self.assertEqual(done.returncode, 0, done.stderr)
        checked = self.kvrun("certs", "verify", "c/cert.txt", "--json")
        self.assertEqual((checked.returncode, json.loads(checked.stdout)["valid"]), (0, True), checked.stderr)
        file = pathlib.Path(self.server.folder, "c/cert.txt")
        file.write_text(re.sub(r"(?m)^index \d+", "index 0", file.read_text()))
        self.assertEqual(self.kvrun("certs", "verify", "c/cert.txt").returncode, 7)

    def test_events_past_and_to_come(self):
        def follow(*words):
            process = subprocess.Popen([rig.options.kvrun, "events", "--follow", "--count", "1", "-o", "jsonl", *words],
                                       stdout=subprocess.PIPE, text=True,
                                       env=environment(KVRUN_ADDR=f"127.0.0.1:{self.server.port}",
                                                       KVRUN_TOKEN=self.server.operator))
            self.addCleanup(process.stdout.close)
            return process

        first = self.json("tenants", "create", "events-1")["id"]
        key = self.json("keys", "create", "a", "--role", "tenant_admin", "--tenant", first)["secret"]
        session = self.json("sessions", "create", "--model", "m", "--revision", "r", key=key)["id"]
        past = rig.wait_for("the event", lambda: [event for event in self.json("events", "--types", "session.created")
                                                  if event["session_id"] == session])
        after = self.json("events")[-1]["id"]
        process = follow("--types", "session.created", "--after", after)
        second = self.json("sessions", "create", "--model", "m", "--revision", "r", key=key)["id"]
        line = json.loads(process.stdout.readline())
        self.assertEqual((line["session_id"], process.wait(20)), (second, 0))
        self.assertEqual(len(self.json("events", "-n", "1")), 1)
        self.assertEqual(past[0]["type"], "session.created")

    def test_status_levels_and_backups(self):
        for words in (["status"], ["top"], ["loglevel"], ["backups"], ["engines", "ls"], ["tiers", "get", "dram"]):
            self.assertEqual(self.kvrun(*words).returncode, 0, words)
        self.assertEqual(self.kvrun("loglevel", "debug", "--for", "5s").returncode, 0)
        self.assertEqual(self.kvrun("loglevel", "loud").returncode, 2)
        self.assertEqual(self.kvrun("loglevel", "debug", "--for", "2h").returncode, 2)

    def test_operations_and_the_audit_log(self):
        tenant = self.json("tenants", "create", "operations")["id"]
        secret = self.json("keys", "create", "a", "--role", "auditor", "--tenant", tenant)["secret"]
        done = self.kvrun("tiers", "drain", "dram", "--wait", "--json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["done"]), (0, True), done.stderr)
        operation = json.loads(done.stdout)["id"]
        self.assertEqual(self.json("ops", "wait", operation)["id"], operation)
        self.assertIn(operation, self.kvrun("ops", "ls", "-o", "id").stdout.split())
        self.assertEqual(self.kvrun("ops", "cancel", operation).returncode, 5)  # it is over
        self.assertEqual(self.kvrun("audit", "verify", key=secret).returncode, 0)
        tail = self.kvrun("audit", "tail", "-n", "1", "-o", "jsonl", key=secret)
        entries = self.json("audit", "ls", key=secret)  # after it: entries get their places a moment after what they tell of
        self.assertIn(json.loads(tail.stdout)["index"], [entry["index"] for entry in entries])
        done = self.kvrun("audit", "export", "-o", "log.tar", key=secret)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(tarfile.is_tarfile(os.path.join(self.server.folder, "log.tar")))

    def test_sessions_from_start_to_end(self):
        tenant = self.json("tenants", "create", "sessions")["id"]
        key = self.json("keys", "create", "a", "--role", "tenant_admin", "--tenant", tenant)["secret"]
        words = ("sessions", "create", "--model", "m", "--revision", "r", "--external-id", "chat", "--label", "user=7")
        session = self.json(*words, key=key)["id"]
        self.assertEqual(self.json(*words, key=key)["id"], session)
        self.assertEqual(self.kvrun("sessions", "ls", "--label", "user=7", "-o", "id", key=key).stdout, session + "\n")
        for more in (["touch", session], ["pin", session, "--until", "1h"], ["unpin", session], ["explain", session],
                     ["update", session, "--label", "user=8"]):
            self.assertEqual(self.kvrun("sessions", *more, key=key).returncode, 0, more)
        self.assertEqual(self.json("why", session, key=key)["tenant_state"], "active")
        self.assertEqual(self.json("sessions", "ls", "--label", "user=7", key=key), [])
        self.assertEqual(self.json("erase", "--label", "user=8", "--dry-run", key=key)["would"]["sessions"], 1)
        done = self.kvrun("sessions", "rm", session, "--yes", "--wait", "--json", key=key)
        self.assertEqual((done.returncode, json.loads(done.stdout)["state"]), (0, "certified"), done.stderr)
        self.assertEqual(self.kvrun("tenants", "suspend", tenant).returncode, 0)
        self.assertEqual(self.kvrun("tenants", "suspend", tenant + "x").returncode, 3)

    def test_lists_and_tiers(self):
        self.assertIn("dram", self.kvrun("tiers", "ls", "-o", "id").stdout.split())
        table = self.kvrun("tiers", "ls").stdout.splitlines()
        self.assertEqual(table[0].split()[0], "NAME")

    def test_a_tier_drains_and_takes_blocks_again(self):
        self.addCleanup(self.kvrun, "tiers", "update", "nvme", "--state", "up")
        self.assertEqual(self.json("tiers", "update", "nvme", "--state", "draining", "--dry-run")["would"]["state"], "draining")
        self.assertEqual(self.json("tiers", "get", "nvme")["state"], "up", "nothing was done")
        for state in ("draining", "up"):
            self.assertEqual(self.json("tiers", "update", "nvme", "--state", state)["state"], state)
            self.assertEqual(self.json("tiers", "get", "nvme")["state"], state)
        self.assertEqual(self.kvrun("tiers", "update", "nvme", "--state", "down").returncode, 2)
        self.assertEqual(self.kvrun("tiers", "update", "tape", "--state", "up").returncode, 3)


if __name__ == "__main__":
    rig.main(__name__)
