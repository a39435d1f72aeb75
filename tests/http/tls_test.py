"""Encryption, client certificates, where the listeners may listen, and who may use the engines' socket."""
import http.client
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
import warnings

import rig


class Papers:
    """Authorities and certificates, made with the openssl program."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="kvh.")

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, *words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=self.folder)

    def authority(self, name):
        self.run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key",
                 "-out", f"{name}.pem", "-subj", f"/CN={name}", "-days", "2")

    def certificate(self, name, authority, purpose="serverAuth", names="IP:127.0.0.1,DNS:localhost", days="2"):
        self.run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key",
                 "-out", f"{name}.csr", "-subj", f"/CN={name}")
        pathlib.Path(self.path("ext")).write_text(
            f"subjectAltName={names}\nextendedKeyUsage={purpose}\n")
        self.run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                 "-CAcreateserial", "-out", f"{name}.pem", "-days", days, "-extfile", "ext")
        os.chmod(self.path(f"{name}.key"), 0o600)

    def install(self, name):
        """As a renewal does: each file at once, the key first."""
        for end in ("key", "pem"):
            shutil.copy(self.path(f"{name}.{end}"), self.path("new"))
            os.chmod(self.path("new"), 0o600)
            os.rename(self.path("new"), self.path(f"live.{end}"))

    def context(self, client=None, **versions):
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        for name, version in versions.items():
            setattr(context, name, version)
        if client:
            context.load_cert_chain(self.path(f"{client}.pem"), self.path(f"{client}.key"))
        return context


papers = None


def setUpModule():
    global papers
    papers = Papers()
    papers.authority("ca")
    papers.authority("stranger")
    papers.certificate("first", "ca")
    papers.certificate("second", "ca")
    papers.certificate("client", "ca", "clientAuth")
    papers.certificate("forged", "stranger", "clientAuth")
    papers.certificate("elsewhere", "ca", names="DNS:kvrun.example")
    papers.certificate("over", "ca", days="-1")
    papers.install("first")


def tearDownModule():
    shutil.rmtree(papers.folder, ignore_errors=True)


def tls_options(*more):
    return (f"--http.tls.cert_file={papers.path('live.pem')}", f"--http.tls.key_file={papers.path('live.key')}", *more)


class TlsSuite(rig.Suite):
    @classmethod
    def setUpClass(cls):
        papers.install("first")
        cls.server_options = tls_options(*cls.more)
        super().setUpClass()

    more = ()

    def connect(self, **how):
        return http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=20, context=papers.context(**how))

    def get(self, path="/livez", **how):
        connection = self.connect(**how)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.server.operator}"})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def subject(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as plain:
            with papers.context().wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                return dict(pair[0] for pair in wrapped.getpeercert()["subject"])["commonName"]


class Tls(TlsSuite):
    more = ("--http.tls.reload_interval=1s",)

    def tearDown(self):
        papers.install("first")
        self.server.process.send_signal(signal.SIGHUP)
        rig.wait_for("the first certificate again", lambda: self.subject() == "first")

    def test_the_api_is_encrypted_and_says_that_it_stays_so(self):
        status, headers, _ = self.get("/v1/status")
        self.assertEqual(status, 200)
        self.assertEqual(headers["strict-transport-security"], "max-age=31536000")
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertNotIn(b"HTTP", plain.recv(100))
        answer = self.server.call("GET", "/livez", admin=True)
        self.assertEqual(answer.status, 200, "the probes' listener stays plain")
        self.assertNotIn("strict-transport-security", answer.headers)

    def test_old_versions_are_refused(self):
        with warnings.catch_warnings(), self.assertRaises((ssl.SSLError, ConnectionError)):
            warnings.simplefilter("ignore", DeprecationWarning)
            self.get(minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            self.assertEqual(self.get(minimum_version=version, maximum_version=version)[0], 200)

    def test_a_renewed_certificate_is_taken_without_dropping_anybody(self):
        for how in ("SIGHUP", "the interval"):
            papers.install("first")
            self.server.process.send_signal(signal.SIGHUP)
            rig.wait_for("the first", lambda: self.subject() == "first")
            kept = self.connect()
            kept.request("GET", "/livez")
            kept.getresponse().read()
            papers.install("second")
            if how == "SIGHUP":
                self.server.process.send_signal(signal.SIGHUP)
            rig.wait_for(f"the second, after {how}", lambda: self.subject() == "second")
            kept.request("GET", "/livez")
            self.assertEqual(kept.getresponse().status, 200, "one connection through it all")
            kept.close()

    def test_files_that_cannot_be_used_leave_what_was_in_force(self):
        for damage in (lambda: pathlib.Path(papers.path("live.pem")).write_text("no certificate"),
                       lambda: shutil.copy(papers.path("second.key"), papers.path("live.key")),
                       lambda: os.unlink(papers.path("live.key"))):
            damage()
            before = sum("tls-not-reloaded" in line for line in self.server.log)
            self.server.process.send_signal(signal.SIGHUP)
            rig.wait_for("the refusal", lambda: sum("tls-not-reloaded" in line for line in self.server.log) > before)
            self.assertEqual(self.subject(), "first")
            papers.install("first")


def command(server, *words, address=None, **environment):
    """kvrun as a client of the server's TLS listener: its exit code and what it said."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("KVRUN")}
    done = subprocess.run([rig.options.kvrun, *words], capture_output=True, text=True, timeout=60, check=False, cwd=papers.folder,
                          env={**inherited, "KVRUN_ADDR": address or f"https://127.0.0.1:{server.port}",
                               "KVRUN_TOKEN": server.operator, "KVRUN_CA_FILE": papers.path("ca.pem"), **environment})
    assert server.operator not in done.stdout + done.stderr
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


class CommandLine(TlsSuite):
    """The command line trusts whom it is told to trust, and sends its key to nobody else."""

    def install(self, name):
        papers.install(name)
        self.server.process.send_signal(signal.SIGHUP)
        with open(papers.path(f"{name}.pem"), encoding="ascii") as file:
            wanted = ssl.PEM_cert_to_DER_cert(file.read())

        def shown():
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as plain:
                with context.wrap_socket(plain) as wrapped:
                    return wrapped.getpeercert(True) == wanted

        rig.wait_for(f"the certificate {name}", shown)

    def requests(self):
        return sum('"event":"request"' in line for line in self.server.log)

    def test_a_server_with_the_right_certificate_is_answered_by(self):
        self.install("first")
        for address in (None, f"https://localhost:{self.server.port}"):
            code, out = command(self.server, "status", "-o", "json", address=address)
            self.assertEqual(code, 0, out)
        code, out = command(self.server, "status", "--ca-file", papers.path("ca.pem"), KVRUN_CA_FILE="")
        self.assertEqual(code, 0, out)

    def test_one_that_is_not_who_it_should_be_gets_no_key(self):
        for installed, how, says in (("first", {"KVRUN_CA_FILE": papers.path("stranger.pem")}, "certificate"),
                                     ("first", {"KVRUN_CA_FILE": ""}, "certificate"),
                                     ("first", {"KVRUN_CA_FILE": papers.path("none.pem")}, "certificate"),
                                     ("first", {"KVRUN_CA_FILE": papers.path("first.key")}, "certificate"),
                                     ("elsewhere", {}, "match"), ("over", {}, "expired")):
            self.install(installed)
            before = self.requests()
            code, said = command(self.server, "status", **how)
            self.assertEqual(code, 4, f"{installed} {how}: {said}")
            self.assertIn(says, said)
            self.assertEqual(self.requests(), before, "nothing was asked")
        self.install("first")

    def test_who_speaks_without_encryption_is_not_answered(self):
        self.install("first")
        self.assertNotEqual(command(self.server, "status", address=f"http://127.0.0.1:{self.server.port}")[0], 0)


class OnlyNew(TlsSuite):
    more = ("--http.tls.min=1.3",)

    def test_only_1_3(self):
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.get(maximum_version=ssl.TLSVersion.TLSv1_2)
        self.assertEqual(self.get()[0], 200)


class ClientCertificates(TlsSuite):
    @classmethod
    def setUpClass(cls):
        cls.more = (f"--http.tls.client_ca_file={papers.path('ca.pem')}",)
        super().setUpClass()

    def test_only_those_with_a_certificate_of_a_known_authority_get_in(self):
        for client in (None, "forged", "second"):  # none, another authority's, one that is for servers
            status, _, body = self.get("/v1/status", client=client)
            self.assertEqual(status, 401, client)
            self.assertIn(b"certificate", body)
        self.assertEqual(self.get("/v1/status", client="client")[0], 200, "the control")

    def test_the_command_line_shows_one(self):
        def ask(cert, key=None, **environment):
            words = ["--cert-file", papers.path(cert)] + (["--key-file", papers.path(key)] if key else [])
            return command(self.server, "status", *words, **environment)

        self.assertEqual(ask("client.pem", "client.key")[0], 0)
        both = pathlib.Path(papers.path("client.pem")).read_text() + pathlib.Path(papers.path("client.key")).read_text()
        pathlib.Path(papers.path("both.pem")).write_text(both)
        self.assertEqual(ask("both.pem")[0], 0)
        self.assertEqual(command(self.server, "status", KVRUN_CERT_FILE=papers.path("client.pem"),
                                 KVRUN_KEY_FILE=papers.path("client.key"))[0], 0)
        self.assertEqual(command(self.server, "status")[0], 4, "none")
        for cert, key in (("forged.pem", "forged.key"), ("second.pem", "second.key"),  # another authority's, a server's
                          ("client.pem", "second.key"), ("client.pem", None), ("none.pem", "client.key")):  # no pair
            code, said = ask(cert, key)
            self.assertEqual(code, 4, f"{cert} {key}: {said}")


class Addresses(unittest.TestCase):
    def refused(self, *options):
        state = tempfile.mkdtemp(prefix="kvh.")
        try:
            done = subprocess.run([rig.options.kvrun, "serve", f"--state.dir={state}/state", "--http.admin_listen=127.0.0.1:0",
                                   "--http.listen=127.0.0.1:0", *options], capture_output=True, text=True, timeout=60,
                                  cwd="/", env={k: v for k, v in os.environ.items() if not k.startswith("KVRUN")})
        finally:
            shutil.rmtree(state, ignore_errors=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def test_keys_do_not_cross_the_network_in_the_clear(self):
        for address in ("0.0.0.0:0", "[::]:0"):
            self.assertIn("http.insecure_listen=true", self.refused(f"--http.listen={address}"))
        for options, says in ((("--http.listen=localhost:0",), "is not an address"),
                              (("--http.listen=[::1:0",), "is not an address"),
                              (("--http.listen=127.0.0.1:65536",), "is not an address"),
                              ((f"--http.tls.cert_file={papers.path('first.pem')}",), "key_file is not"),
                              ((f"--http.tls.cert_file={papers.path('first.pem')}",
                                f"--http.tls.key_file={papers.path('second.key')}"), "is not the key"),
                              ((f"--http.tls.cert_file={papers.path('none')}",
                                f"--http.tls.key_file={papers.path('second.key')}"), "cannot read"),
                              (("--http.socket_allow_uids=0,",), "http.socket_allow_uids"),
                              (("--http.socket_allow_uids=root",), "http.socket_allow_uids")):
            self.assertIn(says, self.refused(*options))

    def serve(self, *options):
        server = rig.Server(*options)
        self.addCleanup(server.remove)
        return server

    def test_a_proxy_in_front_may_do_the_encrypting(self):
        server = self.serve("--http.listen=0.0.0.0:0", "--http.insecure_listen=true", "--http.admin_listen=0.0.0.0:0",
                            "--http.socket_allow_uids=4294967294", "--http.per_ip=3")
        self.assertEqual(server.call("GET", "/livez").status, 200)
        self.assertTrue(any("admin-listener-is-not-loopback" in line for line in server.log))
        warnings = server.call("GET", "/v1/status", server.operator).json()["warnings"]
        self.assertIn("insecure_listen", str(warnings))
        # The socket is for a user that this one is not.
        answer = server.call("GET", "/v1/status", server.operator, unix=os.path.join(server.state, "engine.sock"))
        self.assertEqual((answer.status, answer.code), (403, "forbidden"))
        # An address has three connections.
        held = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(3)]
        try:
            rig.wait_for("the fourth to be refused", lambda: self.is_refused(server))
        finally:
            for connection in held:
                connection.close()
        rig.wait_for("room again", lambda: not self.is_refused(server))

    def is_refused(self, server):
        try:
            return server.call("GET", "/livez", timeout=5).status != 200
        except (OSError, http.client.HTTPException):
            return True

    def test_ipv6_and_the_socket_of_a_user_who_may(self):
        if not socket.has_ipv6 or not pathlib.Path("/proc/net/if_inet6").exists():
            self.skipTest("no IPv6")
        server = self.serve("--http.listen=[::1]:0", f"--http.socket_allow_uids=4294967294,{os.getuid()}",
                            "--http.socket_mode=0600")
        connection = http.client.HTTPConnection("::1", server.port, timeout=20)
        connection.request("GET", "/livez")
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()
        where = os.path.join(server.state, "engine.sock")
        self.assertEqual(os.stat(where).st_mode & 0o777, 0o600)
        self.assertEqual(server.call("GET", "/v1/status", server.operator, unix=where).status, 200)


if __name__ == "__main__":
    if not shutil.which("openssl"):
        print("the openssl program is not installed", file=sys.stderr)
        sys.exit(rig.SKIP)
    rig.main(__name__)
