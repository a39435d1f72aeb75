"""The end of a server under load: who was taken in is answered, later callers are refused, and it exits with 0."""
import re
import signal
import socket
import threading
import time

import rig


class Load:
    """Callers that make a connection a request until they are told to end."""

    def __init__(self, port, token, callers=8):
        self.answered, self.refused, self.dropped = 0, 0, []
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.where = ("127.0.0.1", port)
        self.request = (f"GET /v1/tiers HTTP/1.1\r\nHost: kvrun\r\nAuthorization: Bearer {token}\r\n"
                        "Connection: close\r\n\r\n").encode()
        self.threads = [threading.Thread(target=self.run) for _ in range(callers)]
        for thread in self.threads:
            thread.start()

    def once(self):
        with socket.create_connection(self.where, timeout=20) as link:
            link.sendall(self.request)
            data = b""
            while chunk := link.recv(65536):
                data += chunk
        return data

    def run(self):
        while not self.ended.is_set():
            try:
                data = self.once()
            except ConnectionRefusedError:
                with self.lock:
                    self.refused += 1
                time.sleep(0.01)
                continue
            except OSError as error:
                data = repr(error).encode()
            with self.lock:
                if re.match(rb"HTTP/1.1 (200|503) ", data):
                    self.answered += 1
                else:
                    self.dropped.append(data[:200])

    def end(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()


class Stop(rig.unittest.TestCase):
    def test_nobody_who_was_taken_in_is_dropped(self):
        server = rig.Server("--rate.default=1000000")
        for _ in range(3):
            load = Load(server.port, server.operator)
            rig.wait_for("load", lambda: load.answered > 200)
            self.assertEqual(server.stop(), 0)
            rig.wait_for("callers to be refused", lambda: load.refused > 0)
            load.end()
            self.assertEqual(load.dropped, [])
            server.start()
        server.remove()

    def test_one_who_keeps_his_connection_is_told_that_it_ends(self):
        server = rig.Server("--shutdown.delay=1s")
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
            request = b"GET /livez HTTP/1.1\r\nHost: kvrun\r\n\r\n"
            link.sendall(request)
            self.assertNotIn(b"Connection: close", link.recv(65536))
            ender = threading.Thread(target=server.stop)
            ender.start()
            data = b""
            while data is not None and b"Connection: close" not in data:
                link.sendall(request)
                data = link.recv(65536)
                self.assertTrue(data, "the connection ended without a word")
                time.sleep(0.02)
            ender.join()
        server.remove()

    def test_more_callers_than_there_may_be_do_not_hold_the_end_up(self):
        """The library locks itself out when it is handed callers past its limit. They come while the server stands still, so that it
        finds all of them, and the wish to end, at once."""
        limit = 40
        server = rig.Server(f"--http.connections={limit}")
        links = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(limit - 10)]
        rig.wait_for("callers", lambda: server.call("GET", "/livez", admin=True).status == 200 and self.connected(server) >= limit - 10)
        server.process.send_signal(signal.SIGSTOP)
        links += [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(60)]
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        server.process.wait(60)  # another wish to end would be one to end at once
        self.assertEqual(server.stop(), 0)
        for link in links:
            link.close()
        server.remove()

    @staticmethod
    def connected(server):
        text = server.call("GET", "/metrics", admin=True).body.decode()
        return int(re.search(r'^kvrun_http_connections\{listener="api"\} (\d+)$', text, re.M)[1])


rig.main(__name__)
