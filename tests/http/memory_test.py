"""Bodies are read before anybody knows whose they are: all of them together have a bound (BODIES_BYTES in api/limits.def)."""
import pathlib
import re
import socket

import rig

BODY = 1_000_000
HEAD = f"POST /v1/tenants HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n".encode()


class Memory(rig.Suite):
    def limit(self):
        text = (pathlib.Path(__file__).resolve().parents[2] / "api" / "limits.def").read_text()
        return int(re.search(r"KV_LIMIT\(BODIES_BYTES,\s*(\d+)", text)[1])

    def finish(self, connection):
        """The status of the answer, or None when the connection was cut."""
        try:
            connection.sendall(b" " * 1000)
            line = connection.recv(64)
        except OSError:
            return None
        return int(line.split()[1]) if line else None

    def test_bodies_past_the_bound_are_refused_and_room_comes_back(self):
        several = self.limit() // BODY + 20
        connections = []
        try:
            for _ in range(several):
                connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
                connections.append(connection)
                try:
                    connection.sendall(HEAD + b" " * (BODY - 1000))
                except OSError:
                    pass  # refused already
            statuses = [self.finish(connection) for connection in connections]
        finally:
            for connection in connections:
                connection.close()
        self.assertLessEqual(set(statuses), {401, 503, None})
        self.assertIn(401, statuses, "the control: within the bound a body is read and its key judged")
        self.assertGreaterEqual(len([status for status in statuses if status != 401]), 15)
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as connection:
            connection.sendall(HEAD + b" " * (BODY - 1000))
            self.assertEqual(self.finish(connection), 401)


if __name__ == "__main__":
    rig.main(__name__)
