"""Callers that wait (Prefer: wait) hold no service thread; those who go away, the limit, the stop."""
import concurrent.futures
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import rig

LIMIT = int(re.search(r"KV_LIMIT\(PARKED_REQUESTS,\s*(\d+)",
                      (pathlib.Path(__file__).resolve().parents[2] / "api" / "limits.def").read_text())[1])


class Held:
    """While it is open no erasure gets further than being fenced: no batch can be written down."""

    def __init__(self, server, lock="LOCK TABLE kvrun.erase_batch IN SHARE MODE"):
        psql = rig.postgres_program("psql")
        where = pathlib.Path(server.state, "postgres.socket").read_text().strip()
        url = f"host={where} port=5432 user=kvrun dbname=postgres connect_timeout=5"
        self.psql = subprocess.Popen([psql, "-XAtq", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.psql.stdin.write(f"SET idle_in_transaction_session_timeout = 0; BEGIN; {lock}; SELECT 'held';\n")
        self.psql.stdin.flush()
        assert self.psql.stdout.readline().strip() == "held"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.psql.stdin.close()  # the transaction ends with its connection
        self.psql.wait(20)
        self.psql.stdout.close()


class Wait(rig.Suite):
    server_options = ("--service.threads=2",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("waiting")
        cls.admin = cls.server.key(cls.tenant, "tenant_admin")

    def setUp(self):
        self.session = self.server.session(self.admin)

    def erase(self, wait, session=None):
        body = {"scope": {"session_id": session or self.session}}
        return self.server.call("POST", "/v1/erasures", self.admin, body, {"Prefer": f"wait={wait}"})

    def waiting(self):
        """Erasures that somebody asked for and that are not on their way yet."""
        return int(self.server.database("SELECT count(*) FROM kvrun.erasure WHERE state IN ('requested', 'fenced')"))

    def test_many_who_wait_leave_the_server_to_others(self):
        count = 24  # with two service threads
        sessions = [self.server.session(self.admin) for _ in range(count)]
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            with Held(self.server):
                waits = [pool.submit(self.erase, 50, session) for session in sessions]
                rig.wait_for("all of them to wait", lambda: self.waiting() == count)
                begun = time.monotonic()
                for _ in range(20):
                    self.assertEqual(self.server.call("GET", f"/v1/tenants/{self.tenant}", self.admin).status, 200)
                self.assertLess(time.monotonic() - begun, 10)
                self.assertFalse(any(wait.done() for wait in waits))
            for wait in waits:
                answer = wait.result(60)
                self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"))
                self.assertIn("location", answer.headers)

    def test_the_time_ends_a_wait(self):
        with Held(self.server):
            begun = time.monotonic()
            answer = self.erase(1)
            self.assertEqual(answer.status, 202)
            self.assertIn(answer.json()["state"], ("requested", "fenced"))
            self.assertGreaterEqual(time.monotonic() - begun, 1)
            self.assertLess(time.monotonic() - begun, 8)
        rig.wait_for("its end", lambda: self.server.patient(
            "GET", answer.headers["location"], self.admin).json()["state"] == "certified")

    def test_looking_at_one_may_wait_too(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with Held(self.server):
                where = self.erase(0).headers["location"]
                begun = time.monotonic()
                self.assertIn(self.server.call("GET", where, self.admin).json()["state"], ("requested", "fenced"), "the control")
                self.assertLess(time.monotonic() - begun, 40)
                look = pool.submit(self.server.call, "GET", where, self.admin, None, {"Prefer": "wait=50"})
                time.sleep(0.3)
                self.assertFalse(look.done())
            self.assertEqual(look.result(30).json()["state"], "certified")

    def test_what_has_ended_is_answered_at_once(self):
        where = self.erase(50).headers["location"]
        begun = time.monotonic()
        self.assertEqual(self.server.call("GET", where, self.admin, None, {"Prefer": "wait=50"}).json()["state"],
                         "certified")
        self.assertLess(time.monotonic() - begun, 40)

    def connect(self, path, method="GET", body=b"", wait=50):
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.admin}\r\n"
                           f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                           f"Prefer: wait={wait}\r\n\r\n".encode() + body)
        return connection

    def test_past_the_limit_the_answer_comes_at_once_and_those_who_go_away_make_room(self):
        connections = []
        with Held(self.server):
            where = self.erase(0).headers["location"]
            try:
                def one_more():  # a burst would be refused for want of room in the line
                    connections.append(self.connect(where))
                    return len(connections) % 16 == 0 and len(connections) >= LIMIT and self.quick(where)

                rig.wait_for("the car park to be full", one_more, 60)
                self.assertLess(len(connections), LIMIT + 32, "no more than the limit found room")
                for connection in connections[:8]:
                    connection.close()
                rig.wait_for("room again", lambda: not self.quick(where), 30)
            finally:
                for connection in connections:
                    connection.close()
        rig.wait_for("its end", lambda: self.server.patient("GET", where, self.admin).json()["state"] == "certified")

    def quick(self, where):
        """Was a wait of eight seconds answered in less than six?"""
        begun = time.monotonic()
        with self.connect(where, wait=8) as connection:
            self.assertIn(b" 200 ", connection.recv(64))
        return time.monotonic() - begun < 6

    def test_one_who_only_stops_sending_gets_the_answer(self):
        with Held(self.server):
            where = self.erase(0).headers["location"]
            with self.connect(where) as connection:
                connection.shutdown(socket.SHUT_WR)
                begun = time.monotonic()
                self.assertIn(b" 200 ", connection.recv(64))
                self.assertLess(time.monotonic() - begun, 20)


class Stop(rig.Suite):
    def test_a_stop_answers_everybody_who_waits(self):
        tenant = self.server.tenant("stopping")
        admin = self.server.key(tenant, "tenant_admin")
        sessions = [self.server.session(admin) for _ in range(6)]
        answers = []

        def wait(session):
            body = {"scope": {"session_id": session}}
            answers.append(self.server.call("POST", "/v1/erasures", admin, body, {"Prefer": "wait=60"}).status)

        threads = [threading.Thread(target=wait, args=(session,)) for session in sessions]
        with Held(self.server):
            for thread in threads:
                thread.start()
            count = "SELECT count(*) FROM kvrun.erasure WHERE state IN ('requested', 'fenced')"
            rig.wait_for("all of them to wait", lambda: int(self.server.database(count)) == len(sessions))
            begun = time.monotonic()
            self.server.process.send_signal(signal.SIGTERM)
            for thread in threads:
                thread.join(20)
            self.assertLess(time.monotonic() - begun, 15)
        self.server.process.wait(60)
        self.assertEqual(self.server.stop(), 0)
        self.server.start()
        self.assertEqual(answers, [202] * len(sessions))


if __name__ == "__main__":
    rig.main(__name__)
