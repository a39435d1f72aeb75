"""Bodies are read before anybody knows whose they are: all of them together have a bound (BODIES_BYTES in api/limits.def)."""
import pathlib
import re
import select
import socket
import time

import rig

BODY = 1_000_000
HEAD = f"POST /v1/tenants HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n".encode()


class Memory(rig.Suite):
    def limit(self):
        text = (pathlib.Path(__file__).resolve().parents[2] / "api" / "limits.def").read_text()
        return int(re.search(r"KV_LIMIT\(BODIES_BYTES,\s*(\d+)", text)[1])

    def ended(self, connection):
        """The server has closed it; nothing is read that it did not say."""
        try:
            return bool(select.select([connection], [], [], 0)[0]) and connection.recv(4096, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def finish(self, connection):
        """The status of the answer, or None when the connection was cut."""
        try:
            connection.sendall(b" " * 1000)
            line = connection.recv(64)
        except OSError:
            return None
        return int(line.split()[1]) if line else None

    def begin(self):
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
        try:
            connection.sendall(HEAD + b" " * (BODY - 1000))
        except OSError:
            pass  # refused already
        return connection

    def test_bodies_past_the_bound_are_refused_and_room_comes_back(self):
        surplus = 20
        connections = [self.begin() for _ in range(self.limit() // BODY + surplus)]
        try:
            # Every body lacks its end, so none is answered: those that end were refused for room.
            deadline = time.monotonic() + 60
            while sum(map(self.ended, connections)) < surplus - 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            cut = [connection for connection in connections if self.ended(connection)]
            self.assertGreaterEqual(len(cut), surplus - 2)
            self.assertLess(len(cut), len(connections))
            whole = [self.finish(connection) for connection in connections if connection not in cut]
            self.assertEqual(set(whole) - {503, None}, {401}, "the control: within the bound a body is read and its key judged")
        finally:
            for connection in connections:
                connection.close()
        with self.begin() as connection:
            self.assertEqual(self.finish(connection), 401)


if __name__ == "__main__":
    rig.main(__name__)
