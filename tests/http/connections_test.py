"""Many connections, idle ones, and a line that is full: probes and erasing get in whatever else there is."""
import contextlib
import http.client
import pathlib
import re
import resource
import socket
import time

import rig
from wait_test import Held

LIMITS = (pathlib.Path(__file__).resolve().parents[2] / "api" / "limits.def").read_text()


def limit(name):
    return int(re.search(rf"KV_LIMIT\({name},\s*(\d+)", LIMITS)[1])


def keep_alive(port):
    """A connection that was used once and stays."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/livez")
    connection.getresponse().read()
    return connection


class Many(rig.Suite):
    COUNT = 1500

    def resident(self):
        return int(pathlib.Path(f"/proc/{self.server.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def test_as_many_as_people_open_and_what_they_cost(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 4 * self.COUNT:
            self.skipTest(f"only {hard} descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * self.COUNT), hard))
        before, connections = self.resident(), []
        try:
            connections = [keep_alive(self.server.port) for _ in range(self.COUNT)]
            self.assertLess(self.resident() - before, self.COUNT * 128 * 1024)
            for connection in connections[::50]:
                connection.request("GET", "/livez")
                self.assertEqual(connection.getresponse().read(), b"ok\n")
        finally:
            for connection in connections:
                connection.close()


class Idle(rig.Suite):
    server_options = ("--http.connections=40", "--http.idle_timeout=2s", "--http.header_timeout=1s")

    def test_idle_ones_do_not_keep_others_out_for_long(self):
        connections = []
        try:
            for _ in range(80):
                try:
                    connections.append(keep_alive(self.server.port))
                except (OSError, http.client.HTTPException):
                    break  # the limit: what comes now is not answered
            self.assertGreaterEqual(len(connections), 30)
            self.assertEqual(self.server.call("GET", "/readyz", admin=True).status, 200, "probes have a listener of their own")
            begun = time.monotonic()
            rig.wait_for("a place", self.gets_in)
            self.assertLess(time.monotonic() - begun, 40)
        finally:
            for connection in connections:
                connection.close()

    def gets_in(self):
        try:
            return self.server.call("GET", "/livez", timeout=10).status == 200
        except (OSError, http.client.HTTPException):
            return False


class Full(rig.Suite):
    server_options = ("--service.threads=1", "--rate.default=0")

    def test_erasing_is_accepted_when_the_line_is_full(self):
        tenant = self.server.tenant("full")
        admin = self.server.key(tenant, "tenant_admin")
        sessions = [self.server.session(admin) for _ in range(3)]
        # What came with an Idempotency-Key waits for this table, two seconds each, and the one thread with it.
        with Held(self.server, "LOCK TABLE kvrun.idempotency"):
            waiting = []
            def more(count):
                for _ in range(count):
                    connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
                    waiting.append(connection)
                    connection.sendall(f"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {admin}\r\n"
                                       f"Content-Type: application/json\r\nIdempotency-Key: k{len(waiting)}\r\n"
                                       "Content-Length: 2\r\n\r\n{}".encode())
                return self.is_full(tenant, admin)

            try:
                more(limit("SERVICE_QUEUE") + 40)
                for session in sessions:
                    rig.wait_for("the line to be full", lambda: more(5))
                    begun = time.monotonic()
                    answer = self.server.call("POST", "/v1/erasures", admin, {"scope": {"session_id": session}})
                    self.assertEqual(answer.status, 202, answer)
                    self.assertLess(time.monotonic() - begun, 30)
            finally:
                for connection in waiting:
                    connection.close()

    def is_full(self, tenant, admin):
        """One of the line's places comes free every two seconds, and this request may be who gets it, and waits."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = self.server.call("GET", f"/v1/tenants/{tenant}", admin, timeout=5)
            return (answer.status, answer.status == 503 and answer.code) == (503, "busy")
        return False


class Probes(rig.Suite):
    def test_anonymous_probes(self):
        for path, admin, status in (("/livez", False, 200), ("/livez", True, 200), ("/readyz", False, 200),
                                    ("/readyz", True, 200), ("/startupz", True, 200), ("/metrics", True, 200),
                                    ("/startupz", False, 404), ("/metrics", False, 404), ("/v1/status", True, 404),
                                    ("/v1/status", False, 401)):
            for method in ("GET", "HEAD"):
                self.assertEqual(self.server.call(method, path, admin=admin).status, status, (method, path, admin))

    def test_what_a_probe_leaves_out(self):
        self.assertEqual(self.server.call("GET", "/readyz?verbose").status, 200)
        answer = self.server.call("GET", "/readyz?verbose&exclude=tiers,audit", admin=True)
        self.assertEqual(answer.status, 200)
        lines = answer.body.decode().splitlines()
        self.assertIn("[ ]tiers excluded", lines)
        self.assertIn("[ ]audit excluded", lines)
        self.assertIn("[+]db ok", lines)
        for query in ("exclude=nothing", "exclude=tiers,", "exclude=", "exclude=tiers,tiers", "include=tiers"):
            self.assertEqual(self.server.call("GET", f"/readyz?{query}").status, 400, query)


if __name__ == "__main__":
    rig.main(__name__)
