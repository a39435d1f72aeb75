"""Roots of erasure that several servers share: a file that both processes open, which only a build with fault points offers; a token
of SoftHSM; a key service, played by the double of tests/lib. Each says what a server is started with."""
import functools
import glob
import os
import shutil
import subprocess
import sys

PIN = "4711-pin"


class File:
    fault = "roe/file/shared=on"
    environment = {}

    def __init__(self, folder):
        self.folder = os.path.join(folder, "root")
        os.makedirs(self.folder, mode=0o700)
        self.options = ["--root.path=" + os.path.join(self.folder, "file")]

    def close(self):
        pass


def private(path, text):
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(text + "\n")
    return path


def softhsm():
    patterns = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/*/softhsm/libsofthsm2.so", "/usr/lib64/*/libsofthsm2.so")
    return next((path for pattern in patterns for path in glob.glob(pattern)), None)


class Token:
    fault = ""

    def __init__(self, folder):
        tokens, conf = os.path.join(folder, "tokens"), os.path.join(folder, "softhsm2.conf")
        os.makedirs(tokens, mode=0o700)
        private(conf, f"directories.tokendir = {tokens}\nobjectstore.backend = file\nlog.level = ERROR")
        self.environment = {"SOFTHSM2_CONF": conf}
        subprocess.run(["softhsm2-util", "--init-token", "--free", "--label", "kvrun-test", "--pin", PIN, "--so-pin", "so-pin"],
                       env={**os.environ, **self.environment}, check=True, capture_output=True)
        self.options = ["--root.provider=pkcs11", f"--root.pkcs11.module={softhsm()}", "--root.pkcs11.token=kvrun-test",
                        "--root.pkcs11.pin_file=" + private(os.path.join(folder, "pin"), PIN)]

    def close(self):
        pass


class KeyService:
    fault = ""
    environment = {}

    def __init__(self, folder):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib", "transit_double.py")
        self.double = subprocess.Popen([sys.executable, "-B", script, "s.token"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        self.options = ["--root.provider=transit", "--root.transit.address=http://127.0.0.1:" + self.double.stdout.readline().split()[1],
                        "--root.transit.token_file=" + private(os.path.join(folder, "token"), "s.token")]

    def close(self):
        self.double.stdin.close()
        self.double.wait()
        self.double.stdout.close()


class Both:
    """One to start with, and the configuration of another one that the root can move to."""

    def __init__(self, first, other, folder):
        self.parts = [first(folder), other(folder)]
        self.alone = self.parts[0].options  # of an instance that knows the first one only
        self.options = self.alone + [option for option in self.parts[1].options if not option.startswith("--root.provider=")]
        self.environment = {**self.parts[0].environment, **self.parts[1].environment}
        self.fault = ",".join(filter(None, (part.fault for part in self.parts)))

    def close(self):
        for part in self.parts:
            part.close()


KINDS = {"file": File, "transit": KeyService}
if softhsm() and shutil.which("softhsm2-util"):
    KINDS["pkcs11"] = Token


def of(name):
    """A kind, or two of them: "file+transit"."""
    first, _, other = name.partition("+")
    return functools.partial(Both, KINDS[first], KINDS[other]) if other else KINDS[first]
