"""Callers that go away: a reset after every byte of a request, in the answer, while the server waits."""
import json
import socket
import struct
import threading

import rig
from engine import Engine, hash_of


class Aborts(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        tenant = cls.server.tenant("aborts")
        cls.token, cls.admin = cls.server.key(tenant, "engine"), cls.server.key(tenant, "tenant_admin")
        cls.engine = Engine(cls.server, cls.token).open_pool().beat()
        cls.session = cls.server.session(cls.token)
        cls.engine.fill(0, "x")
        cls.engine.offload(cls.session, ["a"], [0])

    def reset_after(self, data, wait=False):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if data:
                connection.sendall(data)
            if wait:
                connection.recv(1)

    def request(self, path, body, extra=b""):
        data = json.dumps(body).encode()
        return (f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n").encode() + extra + b"\r\n" + data

    def blocks(self, **members):
        return {"session_id": self.session, "pool_id": self.engine.pool, "hashes": [hash_of("a")], **members}

    def still_serves(self):
        self.assertTrue(self.server.alive())
        answer = self.engine.restore(self.session, ["a"], [1])
        self.assertEqual(answer.json()["results"], ["restored"])

    def test_a_reset_after_every_byte(self):
        whole = self.request("/v1/restores", self.blocks(slots=[2]))
        for length in range(len(whole) + 1):
            self.reset_after(whole[:length])
        self.still_serves()

    def test_a_reset_after_every_byte_of_chunks(self):
        head = self.request("/v1/lookups", {}).split(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
        body = json.dumps(self.blocks()).encode()
        whole = head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:20], body[20:])) + b"0\r\n\r\n"
        for length in range(len(whole) + 1):
            self.reset_after(whole[:length])
        self.still_serves()

    def test_a_reset_in_the_answer(self):
        for _ in range(50):
            self.reset_after(b"GET /v1/openapi.yaml HTTP/1.1\r\nHost: x\r\n\r\n" * 3, wait=True)
        self.still_serves()

    def test_a_reset_while_transfers_run(self):
        whole = self.request("/v1/restores", self.blocks(slots=[3]))
        threads = [threading.Thread(target=lambda: [self.reset_after(whole) for _ in range(25)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.still_serves()

    def test_a_reset_while_the_caller_waits_for_a_certificate(self):
        session = self.server.session(self.token)
        whole = self.request("/v1/erasures", {"scope": {"session_id": session}}, b"Prefer: wait=20\r\n")
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(whole)
            rig.wait_for("the erasure to begin",
                         lambda: self.server.call("GET", f"/v1/sessions/{session}", self.admin).status == 410)
        erasure = self.server.call("GET", f"/v1/sessions/{session}", self.admin).json()["erasure"]
        rig.wait_for("the certificate that nobody waits for",
                     lambda: self.server.call("GET", erasure, self.admin).json()["state"] == "certified")
        self.still_serves()

    def test_half_a_request_and_nothing_more_does_not_hold_the_server(self):
        whole = self.request("/v1/restores", self.blocks(slots=[4]))
        held = [socket.create_connection(("127.0.0.1", self.server.port), timeout=10) for _ in range(100)]
        for number, connection in enumerate(held):
            connection.sendall(whole[:number * 3])
        self.still_serves()
        for connection in held:
            connection.close()

    def test_idle_connections_past_the_limit_do_not_shut_the_probes_out(self):
        held = [socket.create_connection(("127.0.0.1", self.server.port), timeout=10) for _ in range(300)]
        self.assertEqual(self.server.call("GET", "/livez", admin=True).status, 200)
        for connection in held:
            connection.close()
        self.still_serves()


Aborts.server_options = ("--http.connections=200",)

if __name__ == "__main__":
    rig.main(__name__)
