"""Keys of TLS connections that have ended, and what went through them, are nowhere in the memory of the server. Controls: keys of
a connection that is open are found; and with freed memory left as it is, what was said."""
import contextlib
import hashlib
import hmac
import http.client
import shutil
import ssl
import unittest

import canary_test
import memory_test  # of this folder; it puts tests/http on the path
import rig
from tls_test import Papers

PIECE = memory_test.PIECE


def expand(secret, label, size, digest):
    """HKDF-Expand-Label of RFC 8446 section 7.1, for one block of output."""
    name = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
    return hmac.new(secret, info + b"\1", digest).digest()[:size]


def keys_of(keylog):
    """From the lines that a client writes for a debugger: secrets of each kind, and the keys of records that follow."""
    for line in keylog.read().splitlines():
        if line.startswith("#"):
            continue
        label, _, secret = line.split(" ")
        secret = bytes.fromhex(secret)
        yield label, secret
        if "TRAFFIC" in label:
            yield label, expand(secret, b"key", 32, hashlib.sha384 if len(secret) == 48 else hashlib.sha256)


class Tls(canary_test.Wiped, unittest.TestCase):
    def start(self, version):
        self.papers = Papers()
        self.addCleanup(shutil.rmtree, self.papers.folder, ignore_errors=True)
        self.papers.authority("ca")
        self.papers.certificate("server", "ca")
        self.papers.install("server")
        server = rig.Server(f"--http.tls.cert_file={self.papers.path('live.pem')}", f"--http.tls.key_file={self.papers.path('live.key')}",
                            environment={"KVRUN_FAULT": self.faults, **self.more_environment()})
        self.addCleanup(server.remove)
        self.versions = {"minimum_version": version, "maximum_version": version}
        return server

    def client(self, server, name):
        """A connection that was used and stays open, and its keys as needles."""
        context = self.papers.context(**self.versions)
        context.keylog_filename = self.papers.path(name + ".keys")
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)
        self.addCleanup(connection.close)
        for number in range(10):
            connection.request("POST", "/v1/sessions", body=b'{"unknown":"' + canary_test.SAID["other"].encode() * (1 + 20 * number) + b'"}',
                               headers={"Authorization": f"Bearer {server.operator}", "Content-Type": "application/json"})
            connection.getresponse().read()
        needles = memory_test.Needles()
        with open(context.keylog_filename) as keylog:
            for label, secret in keys_of(keylog):
                for at in range(0, len(secret) - PIECE + 1, PIECE):
                    needles[secret[at:at + PIECE]] = f"{name}/{label}"
        self.assertTrue(needles)
        return connection, needles

    def look(self, version):
        server = self.start(version)
        ended = [self.client(server, f"ended{number}") for number in range(4)]
        needles = self.client(server, "open")[1]
        for connection, keys in ended:
            connection.close()
            needles.update(keys)
        for name, text in (("token", server.operator.split("_")[3]), ("said", canary_test.SAID["other"])):
            for at in range(0, len(text) - PIECE + 1, PIECE // 2):
                needles[text[at:at + PIECE].encode()] = f"ended/{name}"

        def found():
            hits, _ = memory_test.scan(server.process.pid, needles)
            return {name: places for name, places in hits.items() if name.startswith("ended")}, set(hits)

        self.assertTrue(any(name.startswith("open/") for name in found()[1]), "control: keys of an open connection are there")
        self.judge(lambda: found()[0])

    def judge(self, found):
        with contextlib.suppress(AssertionError):
            rig.wait_for("the end of the connections", lambda: not found(), 30)
        self.assertEqual(found(), {})

    def test_of_tls_1_3(self):
        self.look(ssl.TLSVersion.TLSv1_3)

    def test_of_tls_1_2(self):
        self.look(ssl.TLSVersion.TLSv1_2)


class Control(canary_test.Unwiped, Tls):
    """What was said stays; GnuTLS itself wipes most of its keys, so of these nothing is demanded here."""

    def judge(self, found):
        self.assertIn("ended/said", found())


if __name__ == "__main__":
    memory_test.main(__name__)
