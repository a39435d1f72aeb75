"""kvrun.py against a server of the test's own: what hangs, lies, forgets or says no, step by step. What happens against a
real one is in the scenario; libkvrun's counterpart of this is kvrun_fault_test.c."""
import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import sys
import tempfile
import threading
import time
import unittest

ENGINE = {"id": "eng_1", "server_incarnation": "ins_1", "lease_seconds": 3600}
NEXT_ENGINE = {"id": "eng_2", "server_incarnation": "ins_2", "lease_seconds": 3600}
BEAT, POOL = {"revocations": []}, {"id": "poo_1"}
RESTORED = {"operation_id": "opr_1", "results": ["restored"], "tiers": ["dram"], "contiguous_blocks": 1}
CLOSE, HANG = object(), object()
HASH = bytes(32)
kvrun = None


def problem(code, **members):
    return {"code": code, "detail": "as the test wants it", **members}


class Canned:
    """Answers each request with the next of `answers`: (status, body), bytes as they are, CLOSE, HANG; the last for ever."""

    def __init__(self, path):
        self.answers, self.requests, self.kept = [], [], []
        self.beat = None  # what heartbeats get from now on, outside of the sequence
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(16)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            self.one(connection)

    def one(self, connection):
        data = b""
        while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < self.length(data):
            part = connection.recv(65536)
            if not part:
                return
            data += part
        if self.beat is not None and b":heartbeat HTTP" in data:
            answer = self.beat
        else:
            answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
            self.requests.append(data.decode())
        if answer is HANG:
            self.kept.append(connection)
            return
        if isinstance(answer, tuple):
            body = b"" if answer[1] is None else json.dumps(answer[1]).encode()
            answer = (f"HTTP/1.1 {answer[0]} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode() + body
        if answer is not CLOSE:
            connection.sendall(answer)
        connection.close()

    @staticmethod
    def length(data):
        lines = data.lower().split(b"\r\n\r\n")[0].split(b"\r\n")
        return int(next((line.split(b":")[1] for line in lines if line.startswith(b"content-length:")), 0))

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.kept:
            connection.close()


class Descriptors:
    def __init__(self, path):
        self.line = b"tok_00112233445566778899aabbccddeeff\n"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(16)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            with connection:
                _, fds, _, _ = socket.recv_fds(connection, 1, 1)
                for fd in fds:
                    os.close(fd)
                connection.sendall(self.line)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s")


class Faults(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix="kvp.")
        self.addCleanup(shutil.rmtree, folder)
        self.server, self.descriptors = Canned(folder + "/http"), Descriptors(folder + "/fd")
        self.addCleanup(self.server.close)
        self.addCleanup(self.descriptors.close)
        self.client = kvrun.Client(folder + "/http", "kvrun_secret", fd_socket_path=folder + "/fd", timeout_ms=4000,
                                   control_timeout_ms=20000, deadline_ms=1000)
        self.addCleanup(self.client.close)
        self.fd = kvrun.memory(4096)
        self.addCleanup(os.close, self.fd)

    def open(self, *answers, **callbacks):
        """A registered engine with a pool, and what the server says from then on."""
        self.server.answers = [(201, ENGINE), (200, BEAT), (201, POOL), *answers]
        self.client.register("n", "sim", "1", kvrun.Model("m", "r"), **callbacks)
        self.pool = self.client.pool_register(kvrun.Pool(self.fd, 4096, "f", "v", 16, 4, 1024))
        self.assertIsNone(self.client.ready())

    def restore(self):
        return self.client.restore("ses_1", self.pool, [HASH], [0])

    def offload(self):
        return self.client.offload("ses_1", self.pool, [HASH], [0])

    def missed(self, moved, cause, result="missing"):
        self.assertEqual((moved.results, moved.tiers, moved.cause), ([result], ["none"], cause))
        return moved.hold

    def is_up_again(self):
        wait_for(lambda: self.client.ready() is None)
        self.assertEqual(self.restore().results, ["restored"])

    def failed(self, code, call, *arguments, **named):
        with self.assertRaises(kvrun.Error) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.code, code)
        return caught.exception

    def test_a_cut_connection_holds_the_pages_until_the_pool_is_closed(self):
        self.open(CLOSE, HANG, HANG, (200, BEAT), (204, None), (201, {"id": "poo_2"}), (200, RESTORED))
        hold = self.missed(self.restore(), "transport")
        self.assertNotEqual(hold, 0)
        self.assertFalse(self.client.hold_is_over(self.pool, hold))
        self.assertEqual(self.missed(self.offload(), "down", "failed"), 0)
        self.failed("down", self.client.session_open, kvrun.Model("m", "r"))
        wait_for(lambda: self.client.hold_is_over(self.pool, hold))
        self.is_up_again()
        self.assertIn('"pool_id":"poo_2"', self.server.requests[-1])
        stats = self.client.stats()
        self.assertEqual((stats.missed_transport, stats.missed_down, stats.holds, stats.registrations), (1, 1, 1, 1))
        self.assertEqual(stats.blocks_asked, stats.blocks_restored + stats.blocks_not_restored)
        self.assertEqual(stats.blocks_offered, stats.blocks_not_stored)

    def test_a_server_that_hangs_is_waited_for_once(self):
        self.open(HANG, HANG, (200, BEAT), (204, None), (201, POOL), (200, RESTORED))
        begun = time.monotonic()
        self.missed(self.restore(), "transport")
        self.assertGreaterEqual(time.monotonic() - begun, 4.9)
        begun = time.monotonic()
        for _ in range(200):
            self.missed(self.restore(), "down")
        self.assertLess(time.monotonic() - begun, 2)
        self.is_up_again()

    def test_an_answer_in_drops_is_bounded_as_a_whole(self):
        self.open(HANG, (200, BEAT), (204, None), (201, POOL), (200, RESTORED))
        stop = threading.Event()

        def drip():
            wait_for(lambda: self.server.kept)
            while not stop.wait(0.2):
                try:
                    self.server.kept[0].sendall(b"H")
                except OSError:
                    return

        threading.Thread(target=drip, daemon=True).start()
        begun = time.monotonic()
        self.missed(self.restore(), "transport")
        stop.set()
        self.assertLess(time.monotonic() - begun, 20)
        self.is_up_again()

    def test_answers_that_are_none_are_misses_that_hold(self):
        bad = [(200, "hello"), (200, []), (200, {**RESTORED, "results": []}), (200, {**RESTORED, "tiers": [1]}),
               (200, {**RESTORED, "contiguous_blocks": 2}), (200, {"results": ["restored"], "tiers": ["dram"]}),
               (502, "<html>"), (200, {**RESTORED, "bytes": "many"}),
               b"HTTP/1.1 200 X\r\nContent-Length: 14\r\nConnection: close\r\n\r\n{\"a\":1,\"a\":2} "]
        recovery = [(200, BEAT), (204, None), (201, POOL), (200, RESTORED)]
        self.open(*(answer for one in bad for answer in [one, *recovery]))
        for one in bad:
            wait_for(lambda: self.client.ready() is None)
            hold = self.missed(self.restore(), "protocol")
            self.assertNotEqual(hold, 0, one)
            wait_for(lambda: self.client.hold_is_over(self.pool, hold))
            self.is_up_again()

    def test_a_server_that_fails_each_call_is_believed_less_and_less(self):
        self.open(*[(500, problem("internal")), (200, BEAT)] * 5, (200, RESTORED))
        for number in range(5):
            begun = time.monotonic()
            self.missed(self.restore(), "internal")
            wait_for(lambda: self.client.ready() is None)
            self.assertGreaterEqual(time.monotonic() - begun, 0.09 * 2 ** number)
        self.is_up_again()

    def test_the_lease_is_kept_while_the_server_is_not_believed(self):
        self.server.answers = [(201, {**ENGINE, "lease_seconds": 2}), (201, POOL), (500, problem("internal"))]
        self.server.beat = (200, BEAT)
        self.client.register("n", "sim", "1", kvrun.Model("m", "r"))
        self.pool = self.client.pool_register(kvrun.Pool(self.fd, 4096, "f", "v", 16, 4, 1024))
        for _ in range(6):  # 0.1 s, 0.2 … 3.2: a lease and a half
            wait_for(lambda: self.client.ready() is None)
            self.missed(self.restore(), "internal")
        beats = self.client.stats().heartbeats
        wait_for(lambda: self.client.ready() is None)
        self.assertGreaterEqual(self.client.stats().heartbeats, beats + 4)
        self.assertEqual(self.client.stats().registrations, 1)

    def test_an_answer_past_the_bound_is_refused(self):
        self.open((200, {"a": " " * (4 << 20)}))
        self.failed("protocol", self.client.ask, "GET", "/v1/x")

    def test_no_http_at_all(self):
        self.open(b"SSH-2.0-OpenSSH_9.2\r\n", (200, BEAT), (204, None), (201, POOL), (200, RESTORED))
        self.missed(self.restore(), "transport")
        self.is_up_again()

    def test_what_passes_is_the_blocks_result_and_the_server_stays_in_use(self):
        refusals = [(503, "busy", "busy"), (429, "rate_limited", "busy"), (507, "full", "busy"), (504, "timeout", "timeout"),
                    (403, "policy_denied", "denied"), (429, "quota", "denied"), (403, "tenant_suspended", "denied")]
        self.open(*((status, problem(code)) for status, code, _ in refusals), (200, RESTORED))
        for _, code, result in refusals:
            self.assertEqual(self.missed(self.offload(), code, result), 0)
            self.assertIsNone(self.client.ready())
        self.is_up_again()

    def test_what_the_caller_did_wrong_raises(self):
        self.open((410, problem("session_erased")), (400, problem("invalid_request")), (401, problem("unauthenticated")),
                  (404, problem("not_found")))
        for code in ("session_erased", "invalid_request", "unauthenticated", "not_found"):
            self.failed(code, self.restore)
        self.failed("invalid_argument", self.client.restore, "ses_1", self.pool, [b"short"], [0])
        self.failed("invalid_argument", self.client.restore, "ses_1", self.pool, [HASH], [0, 1])
        self.failed("invalid_argument", self.client.restore, "ses_1", self.pool, [HASH], [0], generations=[])
        self.failed("invalid_argument", self.client.restore, "ses_1", self.pool + 1, [HASH], [0])
        self.failed("invalid_argument", self.client.lookup, "ses_1", self.pool, [HASH] * 4097)
        self.failed("invalid_argument", self.client.erase, "ses_1", wait_seconds=61)
        self.failed("invalid_argument", self.client.ask, "POST", "/x", {"a": HASH})
        self.assertIsNone(self.client.ready())
        self.assertEqual(self.client.stats().calls_refused, 9)

    def test_a_forgotten_engine_and_a_lost_pool_are_registered_again(self):
        lost = (404, problem("not_found", errors=[{"pointer": "/pool_id"}]))
        self.open(lost, (410, problem("engine_unknown")), (201, NEXT_ENGINE), (201, {"id": "poo_2"}), (200, RESTORED),
                  lost, (200, BEAT), (201, {"id": "poo_3"}), (200, RESTORED))
        for _ in range(2):
            self.assertEqual(self.missed(self.restore(), "engine_unknown"), 0)
            self.is_up_again()
        self.assertIn('"pool_id":"poo_3"', self.server.requests[-1])
        self.assertEqual(self.client.stats().registrations, 2)

    def test_only_another_process_ends_a_hold_that_the_server_did_not_end(self):
        self.open(CLOSE, (200, BEAT), (504, problem("timeout")), (201, {"id": "poo_2"}), (500, problem("internal")),
                  (410, problem("engine_unknown")), (201, NEXT_ENGINE), (201, {"id": "poo_3"}), (200, RESTORED))
        hold = self.missed(self.restore(), "transport")
        wait_for(lambda: self.client.ready() is None)
        self.assertFalse(self.client.hold_is_over(self.pool, hold))
        self.missed(self.restore(), "internal")
        wait_for(lambda: self.client.hold_is_over(self.pool, hold))
        self.is_up_again()

    def test_a_hold_outlasts_the_engine_and_its_pool(self):
        self.open(CLOSE, (200, BEAT), (504, problem("timeout")), (201, {"id": "poo_2"}), (204, None), (201, NEXT_ENGINE))
        hold = self.missed(self.restore(), "transport")
        wait_for(lambda: self.client.ready() is None)
        self.client.unregister()
        self.assertFalse(self.client.hold_is_over(self.pool, hold))
        self.client.register("n", "sim", "1", kvrun.Model("m", "r"))
        self.assertTrue(self.client.hold_is_over(self.pool, hold))

    def test_callbacks_are_called_and_may_fail(self):
        told, revoked = [], []

        def link_changed(up, why):
            told.append((up, why and why.code))
            raise RuntimeError("the engine's own mistake")

        with self.assertLogs("kvrun", "ERROR"):
            self.open((500, problem("internal")), (200, {"revocations": [{"session_id": "ses_gone"}, {}, 7]}), (200, RESTORED),
                      revoked=revoked.append, link_changed=link_changed)
            self.missed(self.restore(), "internal")
            self.is_up_again()
            wait_for(lambda: len(told) == 3)
        self.assertEqual(told, [(True, None), (False, "internal"), (True, None)])
        self.assertEqual(revoked, ["ses_gone"])

    def test_confs_and_pools_that_cannot_work_are_refused(self):
        for token in ("", "a\r\nX: 1"):
            self.failed("invalid_argument", kvrun.Client, "/x", token)
        self.failed("invalid_argument", kvrun.Client, "/" + "x" * 107, "t")
        self.failed("invalid_argument", kvrun.Client, "/x", "t", deadline_ms=30001)
        pool = kvrun.Pool(self.fd, 4096, "f", "v", 16, 4, 1024)
        self.failed("invalid_argument", kvrun.Client("/x", "t").pool_register, pool)
        self.failed("invalid_argument", self.client.pool_register, pool)
        self.open((200, BEAT), (422, problem("geometry_mismatch")), (200, {**BEAT, **POOL}))
        self.failed("geometry_mismatch", self.client.pool_register, pool)
        self.assertIsNone(self.client.ready())
        self.failed("invalid_argument", self.client.pool_register, kvrun.Pool(-1, 4096, "f", "v", 16, 4, 1024))
        more = [self.client.pool_register(pool) for _ in range(7)]
        self.failed("limit", self.client.pool_register, pool)
        self.client.pool_remove(self.pool)
        self.failed("invalid_argument", self.client.pool_remove, self.pool)
        self.client.pool_register(pool)
        self.descriptors.line = b"error peer_mismatch\n"
        self.client.pool_remove(more[0])
        self.failed("peer_mismatch", self.client.pool_register, pool)

    def test_the_key_is_in_no_text_of_an_error(self):
        self.open((500, problem("internal")))
        error = self.failed("internal", self.client.session_open, kvrun.Model("m", "r"))
        self.assertIn("Authorization: Bearer kvrun_secret\r\n", self.server.requests[-1])
        self.assertNotIn("kvrun_secret", str(error) + repr(self.client.stats()))


def main():
    global kvrun
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", required=True)
    parser.add_argument("--jobs", help="of the runner; this is one job")
    parser.add_argument("-k", action="append", default=[], help="only tests whose name has this in it")
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("kvrun", pathlib.Path(options.source, "api/clients/python/kvrun.py"))
    kvrun = importlib.util.module_from_spec(spec)
    sys.modules["kvrun"] = kvrun
    spec.loader.exec_module(kvrun)
    unittest.main(argv=[sys.argv[0], *(word for name in options.k for word in ("-k", name))], verbosity=1)


main()
