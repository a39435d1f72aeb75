#!/usr/bin/env python3
"""A double of a transit secrets engine, true to its documented interface as far as a root of erasure uses it.

transit_double.py TOKEN [CERT KEY]: listens on a free port of 127.0.0.1 (with a certificate: TLS), prints "port N", ends with its
standard input. Its own controls are below /double/: POST {"sealed", "token", "keep", "strict", "exportable", "full"}; GET shows
{"keys", "requests"}. GET /double/keys is a snapshot of its storage, which POST puts into another one.

A ciphertext is a keyed stream and a MAC, not AES-GCM: what is tested is who speaks to it.
"""
import base64
import hashlib
import hmac
import json
import os
import re
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

keys, control, lock = {}, {"token": sys.argv[1] if len(sys.argv) > 1 else ""}, threading.Lock()
counts = {}


class Refused(Exception):
    def __init__(self, status, *errors):
        super().__init__(status)
        self.status, self.errors = status, list(errors)


def stream(key, nonce, length):
    blocks = (hashlib.sha256(key + nonce + bytes([i])).digest() for i in range(length // 32 + 1))
    return b"".join(blocks)[:length]


def seal(key, plain):
    nonce = os.urandom(12)
    body = bytes(a ^ b for a, b in zip(plain, stream(key, nonce, len(plain))))
    tag = hmac.new(key, nonce + body, hashlib.sha256).digest()[:16]
    return nonce + body + tag


def unseal(key, sealed):
    nonce, body, tag = sealed[:12], sealed[12:-16], sealed[-16:]
    if len(sealed) < 28 or not hmac.compare_digest(tag, hmac.new(key, nonce + body, hashlib.sha256).digest()[:16]):
        raise Refused(400, "cipher: message authentication failed")
    return bytes(a ^ b for a, b in zip(body, stream(key, nonce, len(body))))


def create(name, body):
    if name not in keys:
        if control.get("full"):
            raise Refused(500, "1 error occurred: no space left on device")
        if body.get("type", "aes256-gcm96") != "aes256-gcm96":
            raise Refused(400, "unknown key type")
        keys[name] = {"material": os.urandom(32), "born": int(time.time()), "deletion_allowed": False,
                      "exportable": bool(body.get("exportable") or control.get("exportable")),
                      "allow_plaintext_backup": bool(body.get("allow_plaintext_backup")), "min_encryption_version": 0}


def describe(name):
    key = keys[name]
    return {"name": name, "type": "aes256-gcm96", "derived": False, "exportable": key["exportable"], "imported_key": False,
            "allow_plaintext_backup": key["allow_plaintext_backup"], "deletion_allowed": key["deletion_allowed"],
            "keys": {"1": key["born"]}, "latest_version": 1, "min_available_version": 0, "min_decryption_version": 1,
            "min_encryption_version": key["min_encryption_version"], "supports_encryption": True, "supports_decryption": True,
            "supports_derivation": True, "supports_signing": False}


def configure(name, body):
    if name not in keys:
        raise Refused(400, "no existing key named %s could be found" % name)
    lowest = body.get("min_encryption_version", keys[name]["min_encryption_version"])
    if lowest > 1:
        raise Refused(400, "cannot set min encryption version of %d, latest key version is 1" % lowest)
    keys[name]["min_encryption_version"] = lowest
    keys[name]["deletion_allowed"] = body.get("deletion_allowed", keys[name]["deletion_allowed"])
    return describe(name)


def delete(name):
    if name not in keys:
        raise Refused(400, "error deleting policy %s: could not delete key; not found" % name)
    if not keys[name]["deletion_allowed"]:
        raise Refused(400, "error deleting policy %s: deletion is not allowed for this key" % name)
    if not control.get("keep"):
        del keys[name]


def encrypt(name, body):
    if name not in keys:
        if control.get("strict"):
            raise Refused(400, "encryption key not found")
        create(name, {})  # what it does for a token that may create
    sealed = seal(keys[name]["material"], base64.b64decode(body["plaintext"], validate=True))
    return {"ciphertext": "vault:v1:" + base64.b64encode(sealed).decode(), "key_version": 1}


def decrypt(name, body):
    found = re.fullmatch(r"vault:v1:([A-Za-z0-9+/]+=*)", body.get("ciphertext", ""))
    if name not in keys:
        raise Refused(400, "encryption key not found")
    try:
        sealed = base64.b64decode(found.group(1), validate=True) if found else None
    except ValueError:
        sealed = None
    if sealed is None:
        raise Refused(400, "invalid ciphertext: no prefix")
    return {"plaintext": base64.b64encode(unseal(keys[name]["material"], sealed)).decode()}


def answer(method, path, body):
    """Data, or None for 204."""
    found = re.fullmatch(r"/v1/transit/(keys|encrypt|decrypt)(?:/([A-Za-z0-9_.-]+)(/config)?)?", path)
    if not found:
        raise Refused(404, "no handler for route %r" % path)
    what, name, config = found.groups()
    if what == "keys" and name is None and method == "LIST":
        if not keys:
            raise Refused(404)
        return {"keys": sorted(keys)}
    if what == "keys" and config and method in ("POST", "PUT"):
        return configure(name, body)
    if what == "keys" and name and method in ("POST", "PUT"):
        return create(name, body)
    if what == "keys" and name and method == "GET":
        if name not in keys:
            raise Refused(404)
        return describe(name)
    if what == "keys" and name and method == "DELETE":
        return delete(name)
    if what == "encrypt" and name and method in ("POST", "PUT"):
        return encrypt(name, body)
    if what == "decrypt" and name and method in ("POST", "PUT"):
        return decrypt(name, body)
    raise Refused(405, "unsupported operation")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def send(self, status, body):
        text = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        if body is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def handle_one(self):
        size = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(size)
        body = json.loads(text) if text else {}
        with lock:
            if self.path == "/double/keys":
                keys.update({name: {**key, "material": bytes.fromhex(key["material"])} for name, key in body.items()})
                return self.send(200, {name: {**key, "material": key["material"].hex()} for name, key in keys.items()})
            if self.path == "/double/":
                control.update(body)
                return self.send(200, {"keys": {n: k["min_encryption_version"] for n, k in keys.items()}, "requests": counts})
            counts[self.command] = counts.get(self.command, 0) + 1
            try:
                if control.get("sealed"):
                    raise Refused(503, "Vault is sealed")
                if self.headers.get("X-Vault-Token") != control["token"]:
                    raise Refused(403, "permission denied")
                if self.headers.get("X-Vault-Namespace", "") != control.get("namespace", ""):
                    raise Refused(404, "no handler for route %r" % self.path)
                data = answer(self.command, self.path, body)
            except Refused as refused:
                return self.send(refused.status, {"errors": refused.errors})
        if data is None:
            return self.send(204, None)
        return self.send(200, {"request_id": "0", "lease_id": "", "renewable": False, "lease_duration": 0, "data": data,
                               "wrap_info": None, "warnings": None, "auth": None})

    do_GET = do_POST = do_PUT = do_DELETE = do_LIST = handle_one


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if len(sys.argv) > 3:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2], sys.argv[3])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("port", server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
