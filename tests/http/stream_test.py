"""Events: streams and polls; what a reader learns that was away, that is slow, that may not see everything."""
import concurrent.futures
import json
import pathlib
import re
import signal
import socket
import time

import rig

LIMITS = (pathlib.Path(__file__).resolve().parents[2] / "api" / "limits.def").read_text()


def limit(name):
    return int(re.search(rf"KV_LIMIT\({name},\s*(\d+)", LIMITS)[1])


class Stream:
    """Reads a stream of events: (id, event, data) one by one; comments and `retry` come as events of that name."""

    def __init__(self, server, token, query="", headers="", receive=None):
        self.socket = socket.socket()
        if receive:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        self.socket.settimeout(30)
        self.socket.connect(("127.0.0.1", server.port))
        self.socket.sendall(f"GET /v1/events{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
                            f"Accept: text/event-stream\r\n{headers}\r\n".encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        for line in iter(self.file.readline, b"\r\n"):
            name, value = line.decode().split(":", 1)
            self.headers[name.lower()] = value.strip()
        self.rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.file.close()
        self.socket.close()

    def line(self):
        while b"\n" not in self.rest:
            size = int(self.file.readline() or b"0", 16)
            self.rest += self.file.read(size)
            self.file.readline()
            if size == 0:
                return None
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode()

    def event(self):
        """The next one; None at the end."""
        found = {}
        while True:
            line = self.line()
            if line is None:
                return None
            if line == "" and found:
                break
            if line.startswith(":"):
                found["event"] = "comment"
            elif line:
                name, value = line.split(": ", 1)
                found[name] = value
        if "retry" in found:
            return ("retry", found["retry"], None)
        return (found.get("event"), found.get("id"), json.loads(found["data"]) if "data" in found else None)

    def until(self, wanted):
        """The next one of this type."""
        while True:
            event = self.event()
            assert event is not None, f"the stream ended before {wanted}"
            if event[0] == wanted:
                return event


class Events(rig.Suite):
    server_options = ("--events.heartbeat=1s",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant, cls.other = cls.server.tenant("watching"), cls.server.tenant("beside")
        cls.admin = cls.server.key(cls.tenant, "tenant_admin")
        cls.stranger = cls.server.key(cls.other, "tenant_admin")

    def poll(self, token, query="", **how):
        answer = self.server.call("GET", f"/v1/events?poll=1{query}", token, **how)
        self.assertEqual(answer.status, 200, answer)
        return answer.json()

    def newest(self):
        return self.poll(self.server.operator)["next_after"]

    def erase(self, session):
        return self.server.call("POST", "/v1/erasures", self.admin, {"scope": {"session_id": session}},
                                {"Prefer": "wait=30"}).json()["id"]

    def test_a_session_s_life_is_told_in_order(self):
        with Stream(self.server, self.admin) as stream:
            self.assertEqual(stream.status, 200)
            self.assertEqual(stream.headers["content-type"], "text/event-stream")
            self.assertEqual(stream.headers["x-accel-buffering"], "no")
            self.assertEqual(stream.headers["cache-control"], "no-store")
            self.assertEqual(stream.event()[:2], ("retry", "2000"))
            session = self.server.session(self.admin)
            erasure = self.erase(session)
            seen, ids = [], []
            while not seen or seen[-1] != "certificate.issued":
                name, event_id, data = stream.event()
                if name == "comment":
                    continue
                self.assertEqual((data["type"], data["id"], data["session_id"]), (name, event_id, session))
                self.assertEqual(data["tenant_id"], self.tenant)
                ids.append(int(event_id.split("-")[1]))
                seen.append(data["state"] if name == "erasure.state" else name)
                if name == "erasure.state":
                    self.assertEqual(data["subject"], erasure)
            self.assertEqual(seen, ["session.created", "requested", "fenced", "staged", "rekeyed", "destroyed", "purged",
                                    "verified", "certified", "certificate.issued"])
            self.assertEqual(ids, sorted(set(ids)))

    def test_last_event_id_goes_on_where_it_was(self):
        with Stream(self.server, self.admin) as stream:
            stream.event()
            first, second = self.server.session(self.admin), self.server.session(self.admin)
            _, event_id, data = stream.until("session.created")
            self.assertEqual(data["session_id"], first)
        third = self.server.session(self.admin)
        for how in ({"headers": f"Last-Event-ID: {event_id}\r\n"}, {"query": f"?after={event_id}"},
                    {"query": f"?after={event_id}", "headers": "Last-Event-ID: 0000000000000000-1\r\n"}):
            with Stream(self.server, self.admin, **how) as stream:
                self.assertEqual(stream.event()[0], "retry")
                self.assertEqual([stream.until("session.created")[2]["session_id"] for _ in range(2)], [second, third])

    def test_an_event_of_another_process_is_a_resync(self):
        self.server.session(self.admin)
        stale = "0123456789abcdef-7"
        with Stream(self.server, self.admin, headers=f"Last-Event-ID: {stale}\r\n") as stream:
            self.assertEqual(stream.event()[0], "retry")
            name, event_id, data = stream.event()
            self.assertEqual(name, "resync")
            self.assertEqual(int(data["oldest"].split("-")[1]), int(event_id.split("-")[1]) + 1)
            self.assertEqual(stream.until("session.created")[0], "session.created", "what is kept follows")
        page = self.poll(self.admin, f"&after={stale}")
        self.assertTrue(page["resync"])
        self.assertTrue(page["data"])
        self.assertFalse(self.poll(self.admin, f"&after={page['next_after']}")["resync"], "the control")

    def test_a_stream_that_has_nothing_to_say_says_that_it_lives(self):
        begun = time.monotonic()  # before it is there: a reader that is late finds what came meanwhile at once
        with Stream(self.server, self.stranger, "?types=policy.changed") as stream:
            self.assertEqual(stream.event()[0], "retry")
            for _ in range(3):
                self.assertEqual(stream.event()[0], "comment")
            self.assertGreater(time.monotonic() - begun, 1.5)

    def test_tenants_see_their_own_events_only(self):
        after = self.newest()
        mine, theirs = self.server.session(self.admin), self.server.session(self.stranger)

        def sessions(token, query=""):
            return [e["session_id"] for e in self.poll(token, f"&after={after}&types=session.created{query}")["data"]]

        self.assertEqual(sessions(self.admin), [mine])
        self.assertEqual(sessions(self.stranger), [theirs])
        self.assertEqual(sessions(self.server.operator), [mine, theirs])
        self.assertEqual(sessions(self.server.operator, f"&tenant_id={self.other}"), [theirs])
        self.assertEqual(sessions(self.server.operator, f"&session_id={mine}"), [mine])
        self.assertEqual(sessions(self.stranger, f"&session_id={mine}"), [])
        answer = self.server.call("GET", f"/v1/events?poll=1&tenant_id={self.tenant}", self.stranger)
        self.assertEqual((answer.status, answer.code), (404, "not_found"))
        with Stream(self.server, self.stranger) as stream:
            stream.event()
            self.server.session(self.admin)
            session = self.server.session(self.stranger)
            self.assertEqual(stream.until("session.created")[2]["session_id"], session)

    def test_a_poll_waits_for_the_first_event(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            wait = pool.submit(self.poll, self.admin, "&wait_seconds=30&types=session.created")
            time.sleep(0.5)
            self.assertFalse(wait.done())
            session = self.server.session(self.admin)
            page = wait.result(20)
            self.assertEqual([e["session_id"] for e in page["data"]], [session])
            begun = time.monotonic()
            page = self.poll(self.admin, f"&after={page['next_after']}&wait_seconds=1&types=policy.changed")
            self.assertEqual(page["data"], [])
            self.assertGreaterEqual(time.monotonic() - begun, 1)

    def test_a_poll_in_a_row_misses_nothing(self):
        after, seen = self.newest(), []
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            made = pool.submit(lambda: [self.server.session(self.admin) for _ in range(30)])
            while len(seen) < 30:
                page = self.poll(self.admin, f"&after={after}&wait_seconds=20&types=session.created")
                after = page["next_after"]
                seen += [e["session_id"] for e in page["data"]]
            self.assertEqual(seen, made.result())

    def test_what_cannot_be_understood_is_refused(self):
        for query in ("types=", "types=session", "types=session.created,", "after=1", "after=0123456789abcdef-01",
                      "session_id=ten_1", "wait_seconds=61&poll=1", "wait_seconds=x&poll=1", "poll=2", "nothing=1",
                      f"token={self.admin}"):
            answer = self.server.call("GET", f"/v1/events?{query}", self.admin)
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), query)
        answer = self.server.call("GET", "/v1/events", self.admin, headers={"Accept": "application/json"})
        self.assertEqual(answer.status, 406)
        answer = self.server.call("GET", "/v1/events?poll=1", self.admin, headers={"Accept": "text/event-stream"})
        self.assertEqual(answer.status, 406)
        self.assertEqual(self.server.call("GET", "/v1/events?poll=1").status, 401)
        self.assertEqual(self.server.call("HEAD", "/v1/events", self.admin).status, 200)

    def test_there_are_as_many_streams_as_the_limit_says(self):
        streams = []
        try:
            rig.wait_for("room for all of them", lambda: streams.append(Stream(self.server, self.admin)) or
                         streams[-1].status == 200)
            while streams[-1].status == 200 and len(streams) <= limit("STREAMS") + 1:
                streams.append(Stream(self.server, self.admin))
            self.assertEqual(streams[-1].status, 503)
            self.assertGreaterEqual(len(streams) - 1, limit("STREAMS") - 4)  # others' may be on their way out
            self.assertLessEqual(len(streams) - 1, limit("STREAMS"))
            streams[0].close()
            rig.wait_for("its place to be free", lambda: self.opens(streams))
            self.assertEqual(self.server.call("GET", "/livez").status, 200)
        finally:
            for stream in streams:
                stream.close()

    def opens(self, streams):
        streams.append(Stream(self.server, self.admin))
        return streams[-1].status == 200


class Stop(rig.Suite):
    def test_a_stop_says_goodbye(self):
        admin = self.server.key(self.server.tenant("leaving"), "tenant_admin")
        streams = [Stream(self.server, admin) for _ in range(3)]
        for stream in streams:
            self.assertEqual(stream.event()[0], "retry")
        self.server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            self.assertEqual(stream.until("bye")[2], {"reason": "shutdown"})
            self.assertIsNone(stream.event())
            stream.close()
        self.server.process.wait(60)
        self.assertEqual(self.server.stop(), 0)
        self.server.start()


if __name__ == "__main__":
    rig.main(__name__)
