#!/usr/bin/env python3
"""Where the root of erasure lies in the drill, and what a thief of it can do: a copy taken in time, and every wrapped root of
every age tried on what is there, past the server, over the interface that the provider has for everybody.

drill_roots.py token MODULE PIN < ROOTS (as kvrun-attack --list-roots has them): the secrets that come out, in hexadecimal."""
import base64
import ctypes
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

PIN = "4711-pin"


def softhsm():
    for pattern in ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/*/softhsm/libsofthsm2.so", "/usr/lib64/*/libsofthsm2.so"):
        for path in sorted(glob.glob(pattern)):
            return path
    return None


def private(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


class File:
    """Two slots in a file; the attack program reads it by itself."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "root")
        self.arguments, self.environment = [f"--root.path={self.path}"], {}

    def steal(self, to):
        shutil.copyfile(self.path, to)
        return to

    def attack(self, _roots, stolen=None):
        """What the attack program is told of it: options, and secrets to try."""
        return ["--root", stolen or self.path], []

    def end(self):
        pass


class Token:
    """A PKCS #11 token in a folder, with SoftHSM."""

    def __init__(self, folder):
        self.folder, self.module = folder, softhsm()
        self.tokens = os.path.join(folder, "tokens")
        os.mkdir(self.tokens)
        self.environment = {"SOFTHSM2_CONF": self.configuration(self.tokens)}
        subprocess.run(["softhsm2-util", "--init-token", "--free", "--label", "kvrun-test", "--pin", PIN, "--so-pin", "so-pin"],
                       env={**os.environ, **self.environment}, check=True, capture_output=True)
        pin = private(pathlib.Path(folder, "pin"), PIN + "\n")
        self.arguments = ["--root.provider=pkcs11", f"--root.pkcs11.module={self.module}", "--root.pkcs11.token=kvrun-test",
                          f"--root.pkcs11.pin_file={pin}"]

    def configuration(self, tokens):
        path = pathlib.Path(tokens + ".conf")
        path.write_text(f"directories.tokendir = {tokens}\nobjectstore.backend = file\nlog.level = ERROR\n")
        return str(path)

    def steal(self, to):
        shutil.copytree(self.tokens, to)
        return to

    def attack(self, roots, stolen=None):
        environment = {**os.environ, "SOFTHSM2_CONF": self.configuration(stolen or self.tokens)}
        done = subprocess.run([sys.executable, "-B", __file__, "token", self.module, PIN], input=roots, text=True, check=True,
                              stdout=subprocess.PIPE, env=environment)
        return [], [bytes.fromhex(line) for line in done.stdout.split()]

    def end(self):
        pass


class Service:
    """A key service with a transit engine: the double of tests/lib."""

    def __init__(self, folder):
        self.double, self.url = self.start()
        self.more = []
        token = private(pathlib.Path(folder, "token"), "s.token\n")
        self.environment = {}
        self.arguments = ["--root.provider=transit", f"--root.transit.address={self.url}", f"--root.transit.token_file={token}"]

    def start(self):
        script = pathlib.Path(__file__).resolve().parents[1] / "lib" / "transit_double.py"
        double = subprocess.Popen([sys.executable, "-B", str(script), "s.token"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return double, "http://127.0.0.1:" + double.stdout.readline().split()[1]

    @staticmethod
    def call(url, method, path, body=None):
        """The data of an answer; None where there is none."""
        request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode(),
                                         {"X-Vault-Token": "s.token", "Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            return None

    def steal(self, to):
        """A snapshot of the service's storage."""
        pathlib.Path(to).write_text(json.dumps(self.call(self.url, "GET", "/double/keys")))
        return to

    def attack(self, roots, stolen=None):
        url = self.url
        if stolen:
            double, url = self.start()
            self.more.append(double)
            self.call(url, "POST", "/double/keys", json.loads(pathlib.Path(stolen).read_text()))
        names = self.call(url, "LIST", "/v1/transit/keys")
        secrets = []
        for line in roots.splitlines():
            blob = bytes.fromhex(line.split()[1])
            for name in names["data"]["keys"] if names else []:
                ciphertext = blob[20:].decode(errors="replace")
                answer = self.call(url, "POST", f"/v1/transit/decrypt/{name}", {"ciphertext": ciphertext})
                if answer:
                    secrets.append(base64.b64decode(answer["data"]["plaintext"])[-32:])
        return [], secrets

    def end(self):
        for double in [self.double, *self.more]:
            double.stdin.close()
            double.wait()
            double.stdout.close()


PROVIDERS = {"file": File, "pkcs11": Token, "transit": Service}


def missing(provider):
    """What is not installed; None when nothing is."""
    if provider == "pkcs11" and not (softhsm() and shutil.which("softhsm2-util")):
        return "SoftHSM is not installed (Debian: softhsm2)"
    return None


# --- a token, by its own interface (PKCS #11 2.40) --------------------------------------------------------------------------

ULONG = ctypes.c_ulong
CKF_SERIAL_SESSION, CKU_USER, CKM_AES_GCM = 4, 1, 0x1087
PURPOSE = b"kvrun/v1/root"
ALREADY_LOGGED_IN, NOT_RECOGNIZED = 0x100, 0xe1


class Mechanism(ctypes.Structure):
    _fields_ = [("mechanism", ULONG), ("parameter", ctypes.c_void_p), ("length", ULONG)]


class Gcm(ctypes.Structure):
    _fields_ = [("iv", ctypes.c_char_p), ("iv_len", ULONG), ("iv_bits", ULONG), ("aad", ctypes.c_char_p), ("aad_len", ULONG),
                ("tag_bits", ULONG)]


def must(rc, what):
    if rc != 0:
        raise RuntimeError(f"{what}: {rc:#x}")


def sessions(library):
    """One on each token that is set up; the last slot always has one that is not."""
    count = ULONG()
    must(library.C_GetSlotList(1, None, ctypes.byref(count)), "C_GetSlotList")
    slots = (ULONG * count.value)()
    must(library.C_GetSlotList(1, slots, ctypes.byref(count)), "C_GetSlotList")
    for slot in slots:
        session = ULONG()
        rc = library.C_OpenSession(ULONG(slot), ULONG(CKF_SERIAL_SESSION), None, None, ctypes.byref(session))
        if rc != NOT_RECOGNIZED:
            must(rc, "C_OpenSession")
            yield session


def objects(library, session):
    must(library.C_FindObjectsInit(session, None, ULONG(0)), "C_FindObjectsInit")
    found, count, some = [], ULONG(1), (ULONG * 64)()
    while count.value:
        must(library.C_FindObjects(session, some, ULONG(64), ctypes.byref(count)), "C_FindObjects")
        found += some[:count.value]
    must(library.C_FindObjectsFinal(session), "C_FindObjectsFinal")
    return found


def decrypt(library, session, key, blob):
    """roe_pkcs11.c: magic, the root's id, nonce, the root secret and its tag; the id is authenticated behind a purpose."""
    about, iv, sealed = PURPOSE + blob[4:20], blob[20:32], blob[32:]
    gcm = Gcm(iv, len(iv), 8 * len(iv), about, len(about), 128)
    mechanism = Mechanism(CKM_AES_GCM, ctypes.cast(ctypes.byref(gcm), ctypes.c_void_p), ctypes.sizeof(gcm))
    if library.C_DecryptInit(session, ctypes.byref(mechanism), ULONG(key)) != 0:
        return None
    plain, length = ctypes.create_string_buffer(256), ULONG(256)
    rc = library.C_Decrypt(session, sealed, ULONG(len(sealed)), plain, ctypes.byref(length))
    return plain.raw[:length.value] if rc == 0 else None


def try_token(module, pin):
    library = ctypes.CDLL(module)
    roots = [bytes.fromhex(line.split()[1]) for line in sys.stdin]
    must(library.C_Initialize(None), "C_Initialize")
    for session in sessions(library):
        rc = library.C_Login(session, ULONG(CKU_USER), pin.encode(), ULONG(len(pin)))
        must(0 if rc == ALREADY_LOGGED_IN else rc, "C_Login")
        for key in objects(library, session):
            for blob in roots:
                secret = decrypt(library, session, key, blob)
                if secret:
                    print(secret.hex())
    must(library.C_Finalize(None), "C_Finalize")


if __name__ == "__main__":
    try_token(sys.argv[2], sys.argv[3])
