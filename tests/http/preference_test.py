"""What a caller prefers and accepts, callers that dawdle with a body, and memory that cannot be had."""
import fcntl
import os
import pathlib
import socket
import subprocess
import time
import unittest

import engine
import rig


class Preference(rig.Suite):
    server_options = ("--http.header_timeout=500ms",)

    def setUp(self):
        tenant = self.server.tenant(f"preference-{time.monotonic_ns()}")
        self.admin = self.server.key(tenant, "tenant_admin")
        self.engine = self.server.key(tenant, "engine")

    def erase(self, prefer):
        body = {"scope": {"session_id": self.server.session(self.admin)}}
        return self.server.call("POST", "/v1/erasures", self.admin, body, {"Prefer": prefer} if prefer else {})

    def test_wait_in_any_spelling_of_the_standard_waits(self):
        for prefer in ("wait=30", "WAIT=30", 'wait="30"', "wait = 30", "respond-async, wait=30", "wait=30; x=y", "wait=999",
                       "wait=99999999999999999999", "wait=30, wait=0", "wait=0000000030"):
            answer = self.erase(prefer)
            self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), prefer)

    def test_what_is_no_wait_does_not_wait(self):
        for prefer in (None, "wait=0", "wait=", "wait=abc", "wait=-1", "wait=3x", "await=30", "x; wait=30", "handling=strict"):
            answer = self.erase(prefer)
            self.assertEqual((answer.status, answer.json()["state"]), (202, "requested"), prefer)

    def test_a_form_with_quality_zero_is_not_chosen(self):
        url = f"/v1/erasures/{self.erase('wait=30').json()['id']}/certificate"
        for accept, status, form in (("text/plain;q=0, application/json", 200, "application/json"),
                                     ("text/plain;q=0.0, application/jose", 200, "application/jose"),
                                     ("text/plain;q=0.5, application/json;q=0", 200, "text/plain"),
                                     ("*/*;q=0", 406, "application/problem+json")):
            answer = self.server.call("GET", url, self.admin, headers={"Accept": accept})
            self.assertEqual((answer.status, answer.headers["content-type"].split(";")[0]), (status, form), accept)

    def test_a_body_that_dawdles_ends_within_its_own_time(self):
        with socket.create_connection(("127.0.0.1", self.server.port)) as slow:
            slow.sendall(b"POST /v1/tenants HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                         b"Content-Length: 1048576\r\n\r\n{")
            slow.settimeout(0.2)
            begun, ended = time.monotonic(), False
            while not ended and time.monotonic() - begun < 40:  # 16 s for the longest body, and the headers' time
                try:
                    slow.sendall(b" ")
                    ended = slow.recv(1) == b""
                except TimeoutError:
                    pass
                except OSError:
                    ended = True
        self.assertTrue(ended)
        self.assertGreater(time.monotonic() - begun, 14)
        self.assertEqual(self.server.call("GET", "/livez").status, 200)

    def test_huge_pages_that_are_not_there_are_named(self):
        fd = os.memfd_create("pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        try:
            free = int(pathlib.Path("/proc/meminfo").read_text().split("HugePages_Free:")[1].split()[0])
            os.ftruncate(fd, (free + 1) << 21)
            fcntl.fcntl(fd, engine.F_ADD_SEALS, engine.F_SEAL_SHRINK)
            caller = engine.Engine(self.server, self.engine)
            token = engine.hand_over(caller.fd_socket, fd)
            answer = caller.register_pool(token=token, size=(free + 1) << 21)
            self.assertEqual((answer.status, answer.code), (503, "busy"), answer)
            self.assertIn("no pages left", answer.json()["detail"])
            caller.open_pool()  # the control
        finally:
            os.close(fd)


class CommandLine(unittest.TestCase):
    def run_kvrun(self, *words):
        done = subprocess.run([rig.options.kvrun, *words], capture_output=True, text=True, timeout=20, cwd="/")
        return done.returncode, done.stdout, done.stderr

    def test_help_is_an_answer_wherever_it_is_asked_for(self):
        for words in (["help"], ["--help"], ["-h"], ["serve", "--help"], ["dev", "-h"], ["db", "--help"], ["config", "--help"],
                      ["serve", "--log.level=info", "--help"]):
            code, out, err = self.run_kvrun(*words)
            self.assertEqual((code, out[:13], err), (0, "usage: kvrun ", ""), words)

    def test_a_misspelt_command_is_named(self):
        for words, name in ((["halp"], "halp"), (["db", "migrat"], "db migrat")):
            code, out, err = self.run_kvrun(*words)
            self.assertEqual((code, out), (2, ""), words)
            self.assertIn(f'"{name}" is no command', err)
        code, out, err = self.run_kvrun("serve", "now")
        self.assertEqual((code, out), (2, ""))
        self.assertIn('"now" is one argument too many', err)


if __name__ == "__main__":
    rig.main(__name__)
