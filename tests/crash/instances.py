#!/usr/bin/env python3
"""Several servers on one database: what one says holds on the other, and an erasure ends the same way while one of them
is stopped, killed, cut off or copied, in each of its phases. The root is a file that both processes share, which only a
build with fault points offers; what several machines share in earnest has tests of its own.

A case waits for conditions. The one time that is judged is how long an erasure takes while an instance is away, against
the lease, its margin and what the machine takes for it anyway."""
import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import engine
import roots
import workload
from ledger import Ledger
from relay import Relay
from server import Client, Cluster, Gone, Server, wait_until

SKIP = 77
SAMPLE = 2
LEASE_SECONDS = 3
PATIENCE = LEASE_SECONDS * 1.1  # what is waited for an instance that is not heard of
WAIT_SECONDS = 120


class Failed(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failed(text)


def stopped(process):
    with open(f"/proc/{process.pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "T"


class Instance:
    """One server, its engine's pool, and who speaks to it."""

    def __init__(self, pair, name, db_url, fault="", options=None):
        self.pair, self.name, self.fault = pair, name, fault
        self.folder = os.path.join(pair.folder, name)
        os.makedirs(self.folder)
        os.chmod(self.folder, 0o711)
        wanted = ["--tiers.dram.bytes=8MiB", "--tiers.nvme.bytes=64MiB", f"--instance.lease={pair.lease}s",
                   *(pair.root.options if options is None else options)]
        self.server = Server(pair.program, self.folder, wanted, db_url, pair.root.environment)
        self.pool, self.clients, self.gate = engine.Pool("p" + name, 16 * 1024, 64), {}, None
        self.keys_from(pair.first)

    def keys_from(self, other):
        if other is not None:
            os.makedirs(self.server.state, mode=0o700)
            for key in ("sign-certificate.key", "sign-log.key"):
                shutil.copy(os.path.join(other.server.state, key), self.server.state)

    def start(self, fault=""):
        self.server.start(",".join(filter(None, (self.pair.root.fault, fault or self.fault))))
        self.clients = {}
        return self

    def attach(self):
        engine.register(self.client("engine"), self.server.fd_socket, [self.pool])
        return self

    def client(self, role):
        if role not in self.clients:
            self.clients[role] = Client(self.server.socket, self.pair.keys[role])
        return self.clients[role]

    def call(self, role, method, path, body=None, **headers):
        return self.client(role).call(method, path, body, **headers)

    def id(self):
        with open(os.path.join(self.server.state, "instance.id")) as file:
            return file.read().strip()

    def stop_here(self):
        self.server.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: stopped(self.server.process), 10, "the stop")

    def go_on(self):
        self.server.process.send_signal(signal.SIGCONT)

    def state(self):
        return self.call("operator", "GET", "/v1/status").json["state"]

    def await_stop(self):
        wait_until(lambda: stopped(self.server.process), WAIT_SECONDS, f"{self.name} at its fault point")

    def transfer(self, route, session, indices, **members):
        hashes = [engine.block_hash(session, "shared", i) for i in indices]
        return self.call("engine", "POST", route, {"session_id": session, "pool_id": self.pool.id, "hashes": hashes,
                                                   "slots": list(range(len(hashes))), **members})

    def offload(self, session, count=3):
        for slot in range(count):
            self.pool.write(slot, engine.block_bytes(engine.block_hash(session, "shared", slot), self.pool.page_bytes))

        def stored():
            answer = self.transfer("/v1/offloads", session, range(count), wait="durable")
            check(answer.status in (200, 503), f"offload: {answer}")
            return answer.status == 200 and set(answer.json["results"]) <= {"stored", "present"}
        wait_until(stored, WAIT_SECONDS, "an offload")

    def restore(self, session, count=3):
        """The answer, and how many pages came back right; a page of a block that did not is untouched."""
        for slot in range(count):
            self.pool.write(slot, self.pool.blank)
        answer = self.transfer("/v1/restores", session, range(count))
        right = 0
        for slot in range(count):
            wanted = engine.block_bytes(engine.block_hash(session, "shared", slot), self.pool.page_bytes)
            page = self.pool.read(slot)
            right += page == wanted
            check(page in (wanted, self.pool.blank), "a page holds what it should not")
        return answer, right

    def said(self):
        with open(self.server.log_path, errors="replace") as log:
            return "".join([line for line in log if '"event":"request"' not in line][-25:])

    def ends(self):
        if self.server.alive():
            self.go_on()
            status = self.server.stop()
            check(status == 0, f"{self.name} ended with {status}:\n{self.server.log_tail()}")


class Pair:
    """A database, a root that is shared, and servers on both."""

    def __init__(self, tools, cluster, name, root):
        self.program, self.verify, self.cluster, self.name = tools.kvrun, tools.verify, cluster, name
        self.folder = tempfile.mkdtemp(prefix="kvinst.")
        os.chmod(self.folder, 0o711)
        self.root = roots.of(root)(self.folder)
        self.root_name = root
        self.url, self.instances, self.relays, self.first, self.keys = cluster.database(name), [], [], None, {}
        self.lease = LEASE_SECONDS

    def sql(self, text):
        from server import database_user, postgres_program
        command = [postgres_program("psql"), "-h", self.cluster.folder, "-U", "kvrun", "-d", self.name, "-qAt", "-c", text]
        run = subprocess.run(command, capture_output=True, text=True, **database_user())
        check(run.returncode == 0, f"{text}: {run.stderr}")
        return run.stdout.strip()

    def add(self, name, fault="", relay=False, start=True, options=None):
        url = self.url
        if relay:
            self.relays.append(Relay(os.path.join(self.folder, "relay-" + name), self.cluster.folder))
            url = url.replace(self.cluster.folder, self.relays[-1].folder)
        instance = Instance(self, name, url, fault, options)
        self.instances.append(instance)
        if start:
            instance.start()
        if self.first is None:
            self.first = instance
            self.make_keys()
        return instance.attach() if start else instance

    def make_keys(self):
        self.keys["operator"] = self.first.server.operator_key()
        self.tenant = self.first.call("operator", "POST", "/v1/tenants", {"name": "acme"}).json["id"]
        for name, role in (("engine", "engine"), ("admin", "tenant_admin")):
            self.keys[name] = self.first.call("operator", "POST", f"/v1/tenants/{self.tenant}/api-keys",
                                              {"name": name, "roles": [role]}).json["secret"]

    def session(self, instance):
        """One that was away says so until it has joined again."""
        def made():
            answer = instance.call("engine", "POST", "/v1/sessions", {"model": engine.MODEL})
            check(answer.status in (201, 503), f"session: {answer}")
            return answer.status == 201 and answer.json["id"]
        return wait_until(made, WAIT_SECONDS, "a session")

    def hold(self, point):
        """A gate at a fault point: the spec for the server, and the file that is there while somebody waits at it."""
        gate = os.path.join(self.folder, point.replace("/", "_"))
        return f"{point}=hold:{gate}", gate

    def remove(self):
        for instance in self.instances:
            if instance.server.alive():
                instance.server.kill()
            instance.server.forget_sockets()
        for relay in self.relays:
            relay.close()
        self.root.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- erasures

    def ask(self, instance, session):
        answer = instance.call("admin", "POST", "/v1/erasures", {"scope": {"session_id": session}, "basis": "gdpr_art17"})
        check(answer.status in (200, 201, 202), f"erasure: {answer}")
        return answer.json["id"]

    def view(self, instance, erasure):
        answer = instance.call("admin", "GET", "/v1/erasures/" + erasure)
        check(answer.status == 200, f"erasure: {answer}")
        return answer.json

    def certified(self, instance, erasure):
        wait_until(lambda: self.view(instance, erasure)["state"] == "certified", WAIT_SECONDS,
                   f"certificate of {erasure}, now {self.view(instance, erasure)}")
        return self.view(instance, erasure)

    def bundle(self, instance, erasure):
        answer = instance.call("admin", "GET", f"/v1/erasures/{erasure}/certificate", Accept="text/plain")
        check(answer.status == 200, f"certificate: {answer}")
        return answer.body

    def good_certificate(self, erasure, *instances):
        """One, the same bytes from all, and the offline verifier takes it."""
        bundles = {self.bundle(instance, erasure) for instance in instances}
        check(len(bundles) == 1, "two instances show two certificates")
        check(self.sql("SELECT count(*) FROM kvrun.audit_leaf WHERE ref IS NOT NULL AND get_byte(ref, 0) = 99 AND entry = "
                       f"(SELECT cert_jws FROM kvrun.erasure WHERE cert_jws IS NOT NULL AND cert_leaf_index = idx"
                       f" AND tenant_id = log_id LIMIT 1)") != "0", "the certificate is no leaf")
        place = os.path.join(self.folder, "certificate")
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, "certificate.txt"), "wb") as file:
            file.write(bundles.pop())
        for name, path in (("jwks.json", "jwks.json"), ("log.vkey", "log.vkey")):
            keys = {instance.call("admin", "GET", "/.well-known/kvrun/" + path).body for instance in instances}
            check(len(keys) == 1, f"two instances show two {path}")
            with open(os.path.join(place, name), "wb") as file:
                file.write(keys.pop())
        run = subprocess.run([self.verify, os.path.join(place, "certificate.txt")], capture_output=True, text=True)
        check(run.returncode == 0, f"kv-verify: {run.stdout}{run.stderr}")
        return self.payload(os.path.join(place, "certificate.txt"))

    def upgrade(self, instance, erasure):
        """What the certificate's view says of what follows it."""
        answer = instance.call("admin", "GET", f"/v1/erasures/{erasure}/certificate", Accept="application/json")
        check(answer.status == 200, f"certificate: {answer}")
        return answer.json["upgrade"]

    def statement(self, erasure, *instances):
        """All have dropped what they had: one statement, the same on all, and it follows from the certificate."""
        def there():
            return all(self.upgrade(instance, erasure)["ciphertext"] == "gone" for instance in instances)
        wait_until(there, WAIT_SECONDS, f"statement of {erasure}, now {self.upgrade(instances[0], erasure)}")
        bundles = {instance.call("admin", "GET", f"/v1/erasures/{erasure}/upgrade.txt").body for instance in instances}
        check(len(bundles) == 1, "two instances show two statements")
        self.good_certificate(erasure, *instances)
        place = os.path.join(self.folder, "certificate")
        with open(os.path.join(place, "upgrade.txt"), "wb") as file:
            file.write(bundles.pop())
        run = subprocess.run([self.verify, os.path.join(place, "upgrade.txt"), "--certificate",
                              os.path.join(place, "certificate.txt")], capture_output=True, text=True)
        check(run.returncode == 0, f"kv-verify: {run.stdout}{run.stderr}")
        return self.payload(os.path.join(place, "upgrade.txt"))

    def payload(self, path):
        import base64
        with open(path) as file:
            jws = next(line for line in file if line.startswith("extra "))[6:]
        part = base64.b64decode(jws).split(b".")[1]
        return json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))

    def erased_everywhere(self, session, *instances):
        for instance in instances:
            def gone():
                answer, right = instance.restore(session)
                check(right == 0, f"{instance.name} restored {right} pages of an erased session: {answer}")
                check(answer.status in (410, 503), f"restore of an erased session: {answer}")
                return answer.status == 410
            wait_until(gone, WAIT_SECONDS, f"{instance.name} refuses {session}")


# --- cases ------------------------------------------------------------------------------------------------------------


def case_second_serves(pair):
    """Starts, serves what the other made, is listed; refusals and changes of one are seen on the other."""
    a, b = pair.add("a"), pair.add("b")
    session = pair.session(a)
    a.offload(session)
    answer, right = b.restore(session)
    check(answer.status == 200 and right == 0 and set(answer.json["results"]) == {"missing"}, f"another's nvme: {answer}")
    b.offload(session)
    check(b.restore(session)[1] == 3 and a.restore(session)[1] == 3, "blocks of each")
    for instance in (a, b):
        def both():
            listed = instance.call("operator", "GET", "/v1/status").json["instances"]
            return {i["id"] for i in listed if i["state"] == "live"} == {a.id(), b.id()} and \
                [i["id"] for i in listed if i["self"]] == [instance.id()]
        wait_until(both, WAIT_SECONDS, "both in the status")

    key = a.call("operator", "POST", f"/v1/tenants/{pair.tenant}/api-keys", {"name": "short", "roles": ["engine"]}).json
    pair.keys["short"] = key["secret"]
    path = "/v1/sessions/" + session
    check(b.call("short", "GET", path).status == 200, "a key of a works on b")
    check(a.call("operator", "DELETE", f"/v1/tenants/{pair.tenant}/api-keys/{key['key']['id'] if 'key' in key else key['id']}")
          .status in (200, 204), "revoked on a")
    begun = time.monotonic()
    wait_until(lambda: b.call("short", "GET", path).status == 401, WAIT_SECONDS, "the key refused on b")
    print(f"    key refused on the other after {time.monotonic() - begun:.2f} s", flush=True)

    wait_until(lambda: a.call("operator", "POST", f"/v1/tenants/{pair.tenant}:suspend", {"reason": "test"}).status == 200,
               WAIT_SECONDS, "suspended")
    wait_until(lambda: b.call("engine", "POST", "/v1/sessions", {"model": engine.MODEL}).status == 403, WAIT_SECONDS,
               "suspended on b")
    check(a.call("operator", "POST", f"/v1/tenants/{pair.tenant}:resume", {}).status == 200, "resumed")
    wait_until(lambda: b.call("engine", "GET", path).status == 200, WAIT_SECONDS, "resumed on b")

    erasure = pair.ask(b, session)
    for instance in (a, b):  # one of them does not erase, and has to look
        begun = time.monotonic()
        answer = instance.call("admin", "GET", "/v1/erasures/" + erasure, Prefer="wait=60")
        check(answer.status == 200 and answer.json["state"] == "certified", f"waited for on {instance.name}: {answer}")
        check(time.monotonic() - begun < 30, f"{instance.name} waited to the end")
    view = pair.certified(a, erasure)
    check({i["id"]: i["how"] for i in view["instances"]}.keys() == {a.id(), b.id()}, f"instances: {view}")
    payload = pair.good_certificate(erasure, a, b)
    check(sorted(i["how"] for i in payload["instances"]) == ["acked", "self"], f"{payload['instances']}")
    check(payload["scope"]["blocks"] == "6", f"blocks of both: {payload['scope']}")
    check(payload["verification"]["samples"] == 6, f"samples of both: {payload['verification']}")
    check("L5" not in [limit["code"] for limit in payload["limits"]], "no limit where none is")
    pair.erased_everywhere(session, a, b)
    statement = pair.statement(erasure, a, b)
    check({one["id"] for one in statement["confirmed"]} == {a.id(), b.id()}, f"who confirmed: {statement}")
    check(statement["lifted"] == [] and statement["closed"] == [] and statement["assurance"] == "E2", f"{statement}")
    a.ends()
    b.ends()


def case_tenant_at_once(pair):
    """All of a tenant, whose sessions are in use on both: one number, which each applies to all of them."""
    a, b = pair.add("a"), pair.add("b")
    sessions = [pair.session(a) for _ in range(3)] + [pair.session(b)]
    for instance, used in ((a, sessions[:3]), (b, sessions[1:])):
        for session in used:
            instance.offload(session)
            check(instance.restore(session)[1] == 3, "before")
    before = int(pair.sql("SELECT seq FROM kvrun.revocation_head"))
    answer = b.call("admin", "POST", "/v1/erasures", {"scope": {"tenant_id": pair.tenant}, "basis": "contract"})
    check(answer.status in (200, 202), f"erasure: {answer}")
    view = pair.certified(a, answer.json["id"])
    check(view["sessions"]["certified"] == 4, f"sessions: {view}")
    check(int(pair.sql("SELECT seq FROM kvrun.revocation_head")) == before + 1, "more than one number")
    check(sorted(i["how"] for i in view["instances"]) == ["acked", "self"], f"instances: {view}")
    payload = pair.good_certificate(view["id"], a, b)
    check(payload["sub"]["kind"] == "tenant" and payload["sub"]["sessions"] == "4", f"{payload['sub']}")
    check(payload["scope"]["blocks"] == "18", f"blocks of both: {payload['scope']}")
    check(payload["verification"]["control_opened"] > 1, f"samples: {payload['verification']}")
    for session in sessions:
        pair.erased_everywhere(session, a, b)
    fresh = pair.session(a)
    b.offload(fresh)
    check(b.restore(fresh)[1] == 3, "a session made since serves")
    a.ends()
    b.ends()


def refused(pair, name, text, prepare=None, shared=True):
    instance = pair.add(name, start=False)
    if prepare:
        prepare(instance)
    instance.server.spawn(pair.root.fault if shared else None)
    check(instance.server.wait_dead(60), f"{name} starts")
    check(instance.server.process.returncode != 0 and text in instance.server.log_tail(), instance.server.log_tail())


def case_second_refused(pair):
    """With other signing keys, with another log name, with a root that is not shared."""
    a = pair.add("a")
    refused(pair, "b", "signs with other keys", lambda b: shutil.rmtree(b.server.state))
    refused(pair, "c", "use a root.provider that instances share",
            lambda c: c.server.options.append("--root.path=" + os.path.join(pair.folder, "root", "other")), shared=False)
    check(pair.sql("SELECT count(*) FROM kvrun.instance") == "1", "a refused one leaves no row")
    check(a.call("operator", "GET", "/v1/status").json["state"] == "ready", "the first is not touched")
    a.ends()


# --- an instance that is away -----------------------------------------------------------------------------------------


def limit_of(payload, code):
    return code in [limit["code"] for limit in payload["limits"]]


def judge_time(what, seconds):
    """Lease and margin twice (for its fence and, when it went on in between, its purge), and what two servers under a
    sanitizer take on a machine that does other things as well."""
    print(f"    {what}: {seconds:.2f} s (patience {PATIENCE:.2f} s)", flush=True)
    check(seconds < 2 * PATIENCE + 60, f"{what} took {seconds:.1f} s")


def away(pair, a, b, leave, come_back, expired=True):
    session = pair.session(a)
    a.offload(session)
    check(a.restore(session)[1] == 3, "before")
    leave()
    begun = time.monotonic()
    erasure = pair.ask(b, session)
    pair.certified(b, erasure)
    took = time.monotonic() - begun
    payload = pair.good_certificate(erasure, b)
    how = {i["id"]: i["how"] for i in payload["instances"]}
    check(how.get(b.id()) == "self", f"{how}")
    check((how.get(a.id()) == "expired") == expired and limit_of(payload, "L5") == expired, f"{how}, {payload['limits']}")
    judge_time("certified while the other was away", took)
    check(took > LEASE_SECONDS * 0.6 or not expired, f"certified after {took:.2f} s, before the lease was over")
    come_back()
    pair.erased_everywhere(session, a, b)
    fresh = pair.session(a)
    a.offload(fresh)
    wait_until(lambda: a.restore(fresh)[1] == 3, WAIT_SECONDS, "the one that was away serves again")


def case_stopped(pair):
    a, b = pair.add("a"), pair.add("b")
    away(pair, a, b, a.stop_here, a.go_on)
    check(pair.sql("SELECT max(incarnation) FROM kvrun.instance") == "2", "joined anew")
    a.ends()
    b.ends()


class Restores:
    """Asks one instance for a session's blocks all the time, and keeps when it last got one."""

    def __init__(self, instance, session):
        self.instance, self.session, self.last, self.error, self.over = instance, session, 0, None, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            while not self.over:
                if self.instance.restore(self.session)[1] > 0:
                    self.last = time.monotonic()
                time.sleep(0.01)
        except Exception as error:
            self.error = error

    def end(self):
        self.over = True
        self.thread.join()
        check(self.error is None, f"restores: {self.error}")
        return self.last


def cut_off(pair, fault):
    """When the other instance's way to the database swallows everything it serves from memory, until its lease is over.
    Seconds from the last block that it gave to the moment the erasure counted as fenced: negative would be a lie."""
    a = pair.add("a", relay=True)
    b = pair.add("b", fault=fault)
    session = pair.session(a)
    a.offload(session)
    wait_until(lambda: a.restore(session)[1] == 3, WAIT_SECONDS, "before")
    restores = Restores(a, session)
    pair.relays[0].open = False
    begun = time.monotonic()
    erasure = pair.ask(b, session)
    wait_until(lambda: pair.view(b, erasure)["state"] != "requested", WAIT_SECONDS, "fenced")
    fenced = time.monotonic()
    if not fault:
        judge_time("fenced while the other is cut off", fenced - begun)
        pair.certified(b, erasure)
    time.sleep(0 if not fault else pair.lease)  # the control: it goes on serving for what is left of its lease
    last = restores.end()
    pair.relays[0].open = True
    if not fault:
        pair.erased_everywhere(session, a, b)
        payload = pair.good_certificate(erasure, b)
        check(limit_of(payload, "L5"), "the one that expired is named")
        a.ends()
        b.ends()
    return fenced - last


def case_cut_off(pair):
    ahead = cut_off(pair, "")
    print(f"    last block {ahead:.2f} s before the fence", flush=True)
    check(ahead > 0, f"a block {-ahead:.2f} s after the fence")


def case_cut_off_control(pair):
    """An eraser that takes everybody for fenced: the check above finds blocks that were given after it."""
    ahead = cut_off(pair, "erase/unfenced=on")
    check(ahead < 0, f"the control gave no block after the fence, the last {ahead:.2f} s before it")


def case_killed(pair):
    a, b = pair.add("a"), pair.add("b")

    def come_back():
        a.start().attach()
    away(pair, a, b, a.server.kill, come_back)
    a.ends()
    b.ends()


def case_cloned(pair):
    """A copy of the state folder, as of a machine that was copied while it ran: a process of the same incarnation. It is
    made here from its row, which another process renews: the real one finds out, and has whoever renewed wipe."""
    a, b = pair.add("a"), pair.add("b")
    session, other = pair.session(a), pair.session(b)
    a.offload(session)
    mine = "id = (SELECT id FROM kvrun.instance ORDER BY started_at LIMIT 1)"
    pair.sql(f"UPDATE kvrun.instance SET lease_ctr = lease_ctr + 1 WHERE {mine}")
    wait_until(lambda: a.call("operator", "GET", "/v1/status").json["state"] == "quarantined", WAIT_SECONDS, "found out")
    answer, right = a.restore(session)
    check(answer.status == 503 and answer.json["code"] == "quarantined" and right == 0, f"the one that gives way: {answer}")
    check(pair.sql(f"SELECT cloned FROM kvrun.instance WHERE {mine}") == "t", "the other is told to wipe")
    erasure = pair.ask(b, session)
    pair.certified(b, erasure)
    payload = pair.good_certificate(erasure, b)
    check({i["how"] for i in payload["instances"]} == {"self", "expired"} and limit_of(payload, "L5"), f"{payload}")
    wait_until(lambda: b.call("engine", "GET", "/v1/sessions/" + other).status == 200, WAIT_SECONDS, "the other serves")
    a.server.kill()
    b.ends()


# --- the one that erases is away --------------------------------------------------------------------------------------

PHASES = ("requested", "fenced", "stage-listed", "stage-create", "staged", "rekeyed", "destroy", "destroyed", "purged",
          "verified", "certificate")
TRANSACTIONS = ("erase-staged", "erase-rekey", "erase-destroyed", "erase-purged", "bundle")


def taken_over(pair, fault, away_with):
    """The eraser is stopped (or killed) at a point; the other one ends what it began, and the first one, when it goes
    on, destroys nothing: what lives opens, and the next erasure ends as well."""
    a = pair.add("a", fault=f"{fault}={away_with}@1")
    session, lives = pair.session(a), pair.session(a)
    a.offload(session)
    a.offload(lives)
    b = pair.add("b")
    b.offload(lives)
    # The one that is asked first erases: b is only there.
    with contextlib.suppress(Gone):
        pair.ask(a, session)
    if away_with == "kill":
        check(a.server.wait_dead(WAIT_SECONDS), f"{fault} did not come by")
    else:
        a.await_stop()
    begun = time.monotonic()
    erasure = wait_until(lambda: pair.sql("SELECT encode(id, 'hex') FROM kvrun.erasure"), 10, "the request")
    check(erasure, "the request is durable")
    erasure = wait_until(lambda: next(iter(b.call("admin", "GET", "/v1/erasures").json["data"]), None), 10, "listed")["id"]
    pair.certified(b, erasure)
    judge_time(f"{fault}={away_with}: taken over and certified", time.monotonic() - begun)
    before = pair.bundle(b, erasure)
    roots = pair.sql("SELECT encode(root_id, 'hex') FROM kvrun.kroot")
    # While the first goes on, the other is in the middle of the next one.
    second = pair.session(b)
    b.offload(second)
    if away_with == "kill":
        a.fault = ""
        a.start().attach()
    next_erasure = pair.ask(b, second)
    if away_with != "kill":
        a.go_on()
    pair.certified(b, next_erasure)
    pair.erased_everywhere(session, a, b)
    pair.erased_everywhere(second, a, b)
    for instance in (a, b):
        wait_until(lambda: instance.call("operator", "GET", "/v1/status").json["state"] == "ready", WAIT_SECONDS,
                   f"{instance.name} ready")
        wait_until(lambda: instance.restore(lives)[1] == 3, WAIT_SECONDS, f"what lives, on {instance.name}")
    check(pair.bundle(a, erasure) == before, "another certificate")
    payload = pair.good_certificate(erasure, a, b)
    check({i["id"] for i in payload["instances"]} == {a.id(), b.id()}, f"{payload['instances']}")
    check(limit_of(payload, "L5") == ("expired" in [i["how"] for i in payload["instances"]]), f"{payload}")
    pair.good_certificate(next_erasure, a, b)
    check(pair.sql("SELECT encode(root_id, 'hex') FROM kvrun.kroot") != roots, "another root after another erasure")
    check(pair.sql("SELECT count(*) FROM kvrun.erase_batch WHERE state NOT IN ('done', 'abandoned')") == "0", "left open")
    a.ends()
    b.ends()


# --- two erasers at once ----------------------------------------------------------------------------------------------

NO_FENCE_NUMBER = """CREATE FUNCTION kvrun.naive() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fence := OLD.fence; RETURN NEW; END $$;
                     CREATE TRIGGER naive BEFORE UPDATE ON kvrun.kroot FOR EACH ROW EXECUTE FUNCTION kvrun.naive()"""


def two_erasers(pair, naive=None):
    """One is about to re-key with the root that it has staged, the other one took the fence and throws that root away."""
    (staged_spec, staged), (discard_spec, discard) = pair.hold("erase/staged"), pair.hold("roe/file/destroy-sync")
    a, b = pair.add("a", fault=staged_spec), pair.add("b", fault=discard_spec)
    session, lives = pair.session(a), pair.session(a)
    for instance, offloaded in (a, session), (a, lives), (b, lives):
        instance.offload(offloaded)
    root = pair.sql("SELECT encode(root_id, 'hex') FROM kvrun.kroot")
    if naive:
        pair.sql(naive)
    erasure = pair.ask(a, session)
    wait_until(lambda: os.path.exists(staged), WAIT_SECONDS, "a staged root")
    pair.sql("UPDATE kvrun.kroot SET eraser = NULL")  # as when its lease is over, of which it would know
    wait_until(lambda: os.path.exists(discard), WAIT_SECONDS, "one that throws it away")
    os.unlink(staged)
    wait_until(lambda: '"round-failed"' in a.said() or pair.sql("SELECT encode(root_id, 'hex') FROM kvrun.kroot") != root,
               WAIT_SECONDS, "the first one's re-key")
    moved = pair.sql("SELECT encode(root_id, 'hex') FROM kvrun.kroot") != root
    os.unlink(discard)
    return a, b, session, lives, erasure, moved


def case_two_erasers(pair):
    a, b, session, lives, erasure, moved = two_erasers(pair)
    check(not moved, "who was overtaken re-keys nothing")
    pair.certified(b, erasure)
    pair.good_certificate(erasure, a, b)
    pair.erased_everywhere(session, a, b)
    check(a.restore(lives)[1] == 3 and b.restore(lives)[1] == 3, "what lives")
    a.ends()
    b.ends()


def case_two_erasers_naive(pair):
    a, b, _, _, _, moved = two_erasers(pair, NO_FENCE_NUMBER)
    check(moved, "it re-keys all the same, under a root that is thrown away")
    wait_until(lambda: "quarantined" in (a.state(), b.state()), WAIT_SECONDS, "the control's mistake")


# --- the root changes while somebody looks ----------------------------------------------------------------------------


def root_moves(pair, fault):
    gate_spec, gate = pair.hold("root/check")
    a, b = pair.add("a"), pair.add("b", fault=",".join(filter(None, (gate_spec, fault))))
    session = pair.session(a)
    wait_until(lambda: os.path.exists(gate), WAIT_SECONDS, "one that read the database")
    pair.certified(a, pair.ask(a, session))
    os.unlink(gate)
    return a, b


def case_root_moves(pair):
    a, b = root_moves(pair, "")
    session = pair.session(b)
    pair.certified(b, pair.ask(b, session))
    check((a.state(), b.state()) == ("ready", "ready"), "both are ready")
    a.ends()
    b.ends()


def case_root_moves_control(pair):
    _, b = root_moves(pair, "root/check-once=on")
    wait_until(lambda: b.state() == "quarantined", WAIT_SECONDS, "the control's mistake")


# --- an operator changes the root while two servers run ---------------------------------------------------------------


class Meanwhile:
    """The other instance's sessions, restored again and again: right pages or none, and an end to whatever kept them."""

    def __init__(self, instance, session):
        self.instance, self.session, self.stopping, self.answers = instance, session, threading.Event(), []
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        client = Client(self.instance.server.socket, self.instance.pair.keys["engine"])
        hashes = [engine.block_hash(self.session, "shared", i) for i in range(3)]
        while not self.stopping.is_set():
            answer = client.call("POST", "/v1/restores", {"session_id": self.session, "pool_id": self.instance.pool.id,
                                                          "hashes": hashes, "slots": [8, 9, 10]})
            self.answers.append(answer.status)

    def end(self):
        self.stopping.set()
        self.thread.join()
        check(set(self.answers) <= {200, 503} and 200 in self.answers, f"restores meanwhile: {set(self.answers)}")


def change(pair, instance, path, body):
    answer = instance.call("operator", "POST", path, body)
    check(answer.status == 202, f"{path}: {answer}")
    operation = "/v1/operations/" + answer.json["id"]
    wait_until(lambda: instance.call("operator", "GET", operation).json["done"], WAIT_SECONDS, path)
    ended = instance.call("operator", "GET", operation).json
    check(ended["state"] == "succeeded", f"{path}: {ended}")
    return ended["response"]


def root_changes(pair, path, body, provider):
    """Both go on: what was stored opens on both, nothing of the old root is left, and either erases."""
    a, b = pair.add("a"), pair.add("b")
    kept = {instance: pair.session(instance) for instance in (a, b)}
    for instance, session in kept.items():
        instance.offload(session)
    meanwhile = Meanwhile(b, kept[b])
    response = change(pair, a, path, body)
    root = a.call("operator", "GET", "/v1/root").json
    check(root["root_id"] == response["new_root"] != response["old_root"] and root["database_provider"] == provider, f"{root}")
    wait_until(lambda: b.call("operator", "GET", "/v1/root").json["provider"].get("active_root") == response["new_root"],
               WAIT_SECONDS, "the other one at the fresh root")
    for instance, session in kept.items():
        wait_until(lambda: instance.restore(session)[1] == 3, WAIT_SECONDS, f"{instance.name} goes on")
    meanwhile.end()
    held = "SELECT count(*) FROM kvrun.instance WHERE acked_root IS DISTINCT FROM (SELECT root_id FROM kvrun.kroot)"
    silent = int(pair.sql(held))  # the one that changed it asks the others, and says so of itself at its next renewal
    check(silent <= 1, f"{silent} instances have not said that they wiped what the old root opened")
    wait_until(lambda: pair.sql(held) == "0", WAIT_SECONDS, "each one's word that it wiped what the old root opened")
    for instance, other in ((b, a), (a, b)):
        session = pair.session(other)
        other.offload(session)
        erasure = pair.ask(instance, session)
        pair.certified(instance, erasure)
        payload = pair.good_certificate(erasure, a, b)
        check(payload["destroyed"]["provider"] == provider, f"destroyed by {payload['destroyed']}")
        pair.erased_everywhere(session, a, b)
    return a, b


def case_root_rotates(pair):
    for instance in root_changes(pair, "/v1/root:rotate", {}, pair.root_name):
        instance.ends()


def case_root_migrates(pair):
    first, _, other = pair.root_name.partition("+")
    a, b = root_changes(pair, "/v1/root:migrate", {"to": other}, other)
    back = change(pair, b, "/v1/root:migrate", {"to": first})
    check(back["provider"] == other, f"who destroyed: {back}")
    for instance in (a, b):
        session = pair.session(instance)
        pair.certified(instance, pair.ask(instance, session))
        instance.ends()


def case_root_migrates_unknown(pair):
    """One instance does not have the new provider's configuration: it says so, opens nothing, and goes on once it has."""
    first, _, other = pair.root_name.partition("+")
    a, b = pair.add("a"), pair.add("b", options=pair.root.alone)
    session = pair.session(b)
    b.offload(session)
    change(pair, a, "/v1/root:migrate", {"to": other})

    wait_until(lambda: b"[-]root_key" in b.call("operator", "GET", "/readyz").body and "root." + other in b.said(),
               WAIT_SECONDS, "the one that cannot follow says so")
    fresh = pair.session(a)
    a.offload(fresh)
    answer, right = b.restore(fresh)
    check(answer.status >= 500 and right == 0, f"what it had not open: {answer}")
    check(b.restore(session)[1] == 3, "what it had open goes on")
    erasure = pair.ask(a, fresh)
    pair.certified(a, erasure)  # it holds nobody up
    pair.good_certificate(erasure, a)
    b.ends()
    b.server.options = a.server.options
    b.start().attach()
    wait_until(lambda: b.restore(session)[1] == 3, WAIT_SECONDS, "b with the configuration")
    pair.certified(b, pair.ask(b, session))
    a.ends()
    b.ends()


# --- filling slots while a root changes -------------------------------------------------------------------------------


def case_fill_held(pair):
    """A session is being made, its nodes filled and not committed, when the root is to change: the eraser waits, then
    ends that transaction. The session was never made, and what is made afterwards opens on both."""
    gate_spec, gate = pair.hold("store/session-create/commit")
    a, b = pair.add("a", fault=gate_spec + "@2"), pair.add("b")
    session = pair.session(a)
    answers = []
    held = threading.Thread(target=lambda: answers.append(
        Client(a.server.socket, pair.keys["engine"]).call("POST", "/v1/sessions", {"model": engine.MODEL})))
    held.start()
    wait_until(lambda: os.path.exists(gate), WAIT_SECONDS, "a session before its commit")
    pair.certified(b, pair.ask(b, session))
    os.unlink(gate)
    held.join()
    check(answers[0].status == 503, f"the session that was held: {answers[0]}")
    check(pair.sql("SELECT count(*) FROM kvrun.session") == "1", "it was not made")
    fresh = pair.session(a)
    a.offload(fresh)
    b.offload(fresh)
    check(a.restore(fresh)[1] == 3 and b.restore(fresh)[1] == 3, "what was made afterwards")
    a.ends()
    b.ends()


# --- the one that does not erase is away ------------------------------------------------------------------------------


def away_in_phase(pair, phase):
    gate_spec, gate = pair.hold(f"erase/{phase}")
    a, b = pair.add("a"), pair.add("b", fault=gate_spec)
    session = pair.session(a)
    a.offload(session)
    erasure = pair.ask(b, session)
    wait_until(lambda: os.path.exists(gate), WAIT_SECONDS, phase)
    a.stop_here()
    begun = time.monotonic()
    os.unlink(gate)
    pair.certified(b, erasure)
    judge_time(f"the other stopped at {phase}: certified", time.monotonic() - begun)
    payload = pair.good_certificate(erasure, b)
    wait_until(lambda: [one["why"] for one in pair.upgrade(b, erasure)["missing"] if one["instance_id"] == a.id()][:1] ==
               ["lease_over"], WAIT_SECONDS, "what a has is not gone")
    a.go_on()
    pair.erased_everywhere(session, a, b)
    statement = pair.statement(erasure, a, b)
    shut_out = [one["id"] for one in payload["instances"] if one["how"] == "expired"]
    check([one["id"] for one in statement["closed"]] == shut_out == [a.id()], f"who was closed: {statement}")
    check(statement["closed"][0]["how"] == "acked" and statement["lifted"] == ["L5"], f"{statement}")
    a.ends()
    b.ends()


for at in ("fenced", "staged", "rekeyed", "destroyed", "purged"):
    globals()["case_away_at_" + at] = functools.partial(away_in_phase, phase=at)

OTHER_ROOTS = sorted(roots.KINDS.keys() - {"file"})
CASES = {name[5:]: value for name, value in list(globals().items()) if name.startswith("case_")}
CASES.update({f"{name}@{root}": CASES[name] for root in OTHER_ROOTS
              for name in ("second_serves", "killed", "root_moves", "away_at_staged", "root_rotates")})
MOVES = [name for name in CASES if name.startswith("root_migrates")]
CASES.update({f"{name}@{first}+{other}": CASES[name] for name in MOVES for first in roots.KINDS for other in roots.KINDS
              if first != other})
for name in MOVES:  # there is nowhere to move to with one provider alone
    del CASES[name]
ALWAYS = [f"second_serves@{root}" for root in OTHER_ROOTS]


def run(tools, cluster, name, function, *args):
    begun, root = time.monotonic(), name.partition("@")[2] or "file"
    pair = Pair(tools, cluster, "i_" + "".join(c if c.isalnum() else "_" for c in name), root)
    try:
        function(pair, *args)
        print(f"{name}: good [{time.monotonic() - begun:.1f} s]", flush=True)
        return True
    except Exception:
        print(f"{name}: FAILED [{time.monotonic() - begun:.1f} s]\n{traceback.format_exc()}", flush=True)
        for instance in pair.instances:
            with contextlib.suppress(OSError):
                print(f"--- {instance.name}\n{instance.said()}", flush=True)
        return False
    finally:
        pair.remove()


def some(rng):
    """All with KV_LONG=1. Else what every run shows, and one of those that another one of its kind stands for."""
    if os.environ.get("KV_LONG") == "1":
        return list(CASES)
    kinds = [[name for name in CASES if name.startswith("away_at") and "@" not in name], [name for name in CASES if name.endswith("control")],
             ["killed", "cloned", "root_moves", "fill_held"],
             [name for name in CASES if name.startswith("root_migrates@")], ["root_rotates", "root_rotates@transit"],
             [name for name in CASES if name.startswith("root_migrates_unknown")]]
    kinds += [[name for name in CASES if name.endswith("@" + root) and name not in ALWAYS] for root in OTHER_ROOTS]
    left = {name for kind in kinds for name in kind}
    drawn = dict.fromkeys(rng.choice(kind) for kind in kinds)  # one may stand in two of them, and a case has one database
    return [name for name in CASES if name not in left] + list(drawn)


def chosen(rng, cases):
    """Where the eraser goes away, and how: a sample, or what is named ("erase/rekeyed=stop"), or with KV_LONG=1 all."""
    points = [f"erase/{phase}" for phase in PHASES] + [f"store/{name}/{step}" for name in TRANSACTIONS
                                                       for step in ("commit", "committed")]
    every = [f"{point}={how}" for point in points for how in ("stop", "kill")]
    others = [f"{case}@{root}" for case in every for root in OTHER_ROOTS]
    if cases:
        return [case for case in cases if "=" in case]
    return every + others if os.environ.get("KV_LONG") == "1" else rng.sample(every, SAMPLE) + rng.sample(others, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvrun", required=True)
    parser.add_argument("--verify", required=True)
    parser.add_argument("--attack")
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", help="of the runner; the cases come one after the other")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    if options.no_faults:
        print("the server has no fault points", file=sys.stderr)
        return SKIP
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    cluster, good, rng = Cluster(), True, random.Random(seed)
    try:
        for name in options.cases or some(rng):
            good = ("=" in name or run(options, cluster, name, CASES[name])) and good
        for case in chosen(rng, options.cases):
            good = run(options, cluster, case, taken_over, *case.partition("@")[0].split("=")) and good
    finally:
        cluster.remove()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
