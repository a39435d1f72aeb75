"""What has to be true of a server that was killed and started again. Each check notes what it finds; none repairs."""
import os
import re
import subprocess
import time

import workload
from ledger import ACCEPTED, ASKED, CHANGED, FALSE_CERTIFICATE, LIVE, LOST_SESSION, NOT_ENDED
from server import wait_until

RESUME_SECONDS = 30
BATCH = 16
STEPS = "requested fenced staged rekeyed destroyed purged verified certified".split()


class Checks:
    def __init__(self, world):
        self.world, self.ledger = world, world.ledger
        self.engine, self.admin, self.operator = (world.client(role) for role in ("engine", "admin", "operator"))
        self.slots = workload.Slots(0, 2)

    def all(self):
        self.settle_doubts()
        self.erased_sessions_stay_closed()
        self.erasures_end()
        self.groups()
        self.certificates()
        self.statements()
        self.live_sessions()
        self.usage()

    # --- what the kill cut off

    def settle_doubts(self):
        """A request without an answer either stands or never was."""
        for session in self.ledger.in_state(ASKED):
            answer = self.admin.call("GET", f"/v1/sessions/{session.id}")
            if answer.status == 200:
                self.ledger.blame(answer.json["state"] == "active", f"{session.id} is half erased: {answer}")
                session.state = LIVE
            elif self.ledger.blame(answer.status == 410, f"session whose erasure was cut off: {answer}"):
                found = re.search(r"era_[a-z0-9]{26}", answer.json.get("certificate", ""))
                self.ledger.blame(found, f"{session.id} is closed and names no erasure: {answer}")
                session.erasure, session.state = found.group(0) if found else None, ACCEPTED

    # --- erased

    def erased_sessions_stay_closed(self):
        for session in self.ledger.in_state(ACCEPTED):
            blocks = (list(session.blocks.values()) or [session.block(self.world.pools[0], 0)])[:1]
            pool, slots = blocks[0].pool, self.slots.of(blocks[0].pool, 1)
            pool.write(slots[0], pool.blank)
            answers = {
                "get": self.engine.call("GET", f"/v1/sessions/{session.id}"),
                "lookup": self.engine.call("POST", "/v1/lookups", {"session_id": session.id, "pool_id": pool.id,
                                                                   "hashes": [blocks[0].hash]}),
                "restore": workload.transfer(self.engine, "/v1/restores", session, blocks, slots),
                "offload": workload.transfer(self.engine, "/v1/offloads", session, blocks, slots),
            }
            for what, answer in answers.items():
                fine = answer.status == 410 and answer.json["code"] == "session_erased"
                self.ledger.blame(fine, f"{what} of {session.id}, whose erasure was accepted: {answer}", FALSE_CERTIFICATE)
            self.ledger.blame(pool.read(slots[0]) == pool.blank, f"a page was written for erased {session.id}", FALSE_CERTIFICATE)

    def erasure_state(self, session):
        answer = self.admin.call("GET", f"/v1/erasures/{session.erasure}")
        if not self.ledger.blame(answer.status == 200, f"accepted erasure {session.erasure}: {answer}"):
            return None
        return answer.json

    def erasures_end(self):
        for session in self.ledger.in_state(ACCEPTED):
            if session.certificate or not session.erasure:
                continue
            end, document = time.monotonic() + RESUME_SECONDS, self.erasure_state(session)
            while document and document["state"] not in ("certified", "quarantined") and time.monotonic() < end:
                time.sleep(0.02)
                document = self.erasure_state(session)
            if document is None:
                continue
            meant = document["scope"] in ({"session_id": session.id}, {"tenant_id": self.world.tenant})
            self.ledger.blame(document["state"] == "certified" and meant,
                              f"{session.erasure} did not end by itself: {document}", NOT_ENDED)
            steps = [step["state"] for step in document["steps"]]
            self.ledger.blame(steps == STEPS, f"{session.erasure} left out steps: {steps}")

    def groups(self):
        """Each request for many ends, with one erasure for each session that it took on, and no session has two."""
        count = "(SELECT count(*) FROM kvrun.erasure e WHERE e.group_id = g.id AND e.state = 'certified')"
        try:
            wait_until(lambda: self.world.server.sql("SELECT count(*) FROM kvrun.erasure_group WHERE ended_at IS NULL") == "0",
                       RESUME_SECONDS, "the end of every group")
        except TimeoutError as error:
            self.ledger.violate(str(error))
        wrong = self.world.server.sql(f"SELECT encode(g.id, 'hex'), g.state, g.sessions, {count} FROM kvrun.erasure_group g"
                                      f" WHERE g.state <> 'certified' OR g.sessions <> {count}")
        self.ledger.blame(not wrong, f"groups that are not as they say: {wrong}")
        twice = self.world.server.sql("SELECT count(session_id) - count(DISTINCT session_id) FROM kvrun.erasure")
        self.ledger.blame(twice == "0", f"{twice} sessions have two erasures")

    def certificates(self):
        """The same bytes whenever asked, valid, and no two that tell different stories about the log."""
        predecessors = {}
        for session in self.ledger.in_state(ACCEPTED):
            if not session.erasure:
                continue
            target = f"/v1/erasures/{session.erasure}/certificate"
            first = self.admin.call("GET", target, Accept="text/plain")
            again = self.admin.call("GET", target, Accept="text/plain")
            if not self.ledger.blame(first.status == 200, f"certificate of {session.erasure}: {first}", NOT_ENDED):
                continue
            self.ledger.blame(first.body == again.body, f"{session.erasure}: two answers differ", CHANGED)
            if session.certificate is None:
                session.certificate = first.body
                self.verify(session)
            self.ledger.blame(first.body == session.certificate, f"{session.erasure}: its certificate has changed", CHANGED)
            self.note_head(session)
            payload = self.admin.call("GET", target, Accept="application/json").json["certificate"]
            before = payload.get("prev")
            self.ledger.blame(predecessors.get(before, session.erasure) == session.erasure,
                              f"{session.erasure} and {predecessors.get(before)} follow the same certificate")
            predecessors[before] = session.erasure
            self.facts(session, payload)

    def statements(self):
        """What follows a certificate comes when it can; once it is there it stays, with the same bytes, and follows."""
        for session in self.ledger.in_state(ACCEPTED):
            if not session.certificate:
                continue
            answer = self.admin.call("GET", f"/v1/erasures/{session.erasure}/upgrade.txt")
            fine = answer.status == 200 or (answer.status == 404 and answer.json["code"] == "not_yet" and not session.statement)
            if self.ledger.blame(fine, f"statement of {session.erasure}: {answer}", CHANGED) and answer.status == 200:
                if session.statement is None:
                    session.statement = answer.body
                    self.verify_statement(session)
                self.ledger.blame(session.statement == answer.body, f"{session.erasure}: its statement has changed", CHANGED)
        wrong = self.world.server.sql(
            "SELECT count(*) FROM kvrun.erasure_upgrade u JOIN kvrun.erasure e ON e.id = u.erasure_id WHERE u.jws IS NOT NULL"
            " AND (SELECT count(*) FROM kvrun.audit_leaf l WHERE l.log_id = e.tenant_id AND l.entry = u.jws)"
            " > 1")
        self.ledger.blame(wrong == "0", f"{wrong} statements are in the log twice", CHANGED)

    def verify_statement(self, session):
        folder = os.path.join(self.world.folder, "certificates")
        path = os.path.join(folder, session.erasure + ".upgrade.txt")
        with open(path, "wb") as file:
            file.write(session.statement)
        run = subprocess.run([self.world.tools.verify, path, "--certificate", os.path.join(folder, session.erasure + ".txt")],
                             capture_output=True, text=True)
        self.ledger.blame(run.returncode == 0 and "Ciphertext gone" in run.stdout,
                          f"kv-verify {path}: {run.returncode} {run.stdout} {run.stderr}", FALSE_CERTIFICATE)

    def facts(self, session, payload):
        """It speaks of this session, of all that was acknowledged, and of samples that did open before."""
        subject = payload["sub"]
        meant = {"session": subject.get("session") == session.id,
                 "tenant": subject["tenant"] == self.world.tenant and int(subject.get("sessions", 0)) > 0}
        self.ledger.blame(meant[subject["kind"]], f"{session.erasure} is about {subject}")
        blocks, promised = int(payload["scope"]["blocks"]), len(session.durable())
        self.ledger.blame(blocks >= promised, f"{session.erasure}: {blocks} blocks, {promised} were durable")
        verification = payload["verification"]
        self.ledger.blame(promised == 0 or verification["control_opened"] > 0,
                          f"{session.erasure}: nothing was opened before: {verification}")

    def verify(self, session):
        folder = os.path.join(self.world.folder, "certificates")
        os.makedirs(folder, exist_ok=True)
        for name in ("jwks.json", "log.vkey"):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(self.admin.call("GET", "/.well-known/kvrun/" + name).body)
        path = os.path.join(folder, session.erasure + ".txt")
        with open(path, "wb") as file:
            file.write(session.certificate)
        run = subprocess.run([self.world.tools.verify, path], capture_output=True, text=True)
        named = session.id in run.stdout or f"sessions, all of tenant {self.world.tenant}" in run.stdout
        self.ledger.blame(run.returncode == 0 and named,
                          f"kv-verify {path}: {run.returncode} {run.stdout} {run.stderr}")

    def note_head(self, session):
        """Of one size there is one root: a log that was cut back and grew again would show another."""
        lines = session.certificate.decode().splitlines()
        heads = [i for i in range(len(lines) - 2) if lines[i + 1].isdigit() and len(lines[i + 2]) == 44]
        if self.ledger.blame(heads, f"{session.erasure}: no signed head in the certificate"):
            origin, size, root = lines[heads[-1]:heads[-1] + 3]
            known = self.world.heads.setdefault((origin, size), root)
            self.ledger.blame(known == root, f"the log {origin} had two roots at size {size}: {known}, {root}")

    # --- alive

    def lookup(self, session, blocks):
        answer = self.engine.call("POST", "/v1/lookups", {"session_id": session.id, "pool_id": blocks[0].pool.id,
                                                          "hashes": [block.hash for block in blocks]})
        if not self.ledger.blame(answer.status == 200, f"lookup in live {session.id}: {answer}", LOST_SESSION):
            return ["none"] * len(blocks)
        return answer.json["tiers"]

    def live_sessions(self):
        for session in self.ledger.in_state(LIVE):
            for pool in self.world.pools:
                blocks = session.known(pool)
                for first in range(0, len(blocks), BATCH):
                    self.live_blocks(session, blocks[first:first + BATCH])

    def live_blocks(self, session, blocks):
        tiers = self.lookup(session, blocks)
        results = workload.restore(self.world, self.engine, session, blocks, self.slots, "after the restart")
        for block, tier, result in zip(blocks, tiers, results or ["refused"] * len(blocks)):
            name = f"block {block.index} ({block.pool.name}) of {session.id}"
            if block.durable:
                self.ledger.blame("nvme" in tier, f"{name} was acknowledged as durable and is on {tier}", LOST_SESSION)
            self.ledger.blame(result == ("missing" if tier == "none" else "restored"),
                              f"{name}: on {tier}, durable {block.durable}, restored as {result}", LOST_SESSION)

    # --- usage

    def counted(self):
        """The tiers' own numbers, the sessions' numbers, and a count of what lookups show; equal when all is quiet."""
        tiers = {tier["name"]: tier for tier in self.operator.call("GET", "/v1/tiers").json["data"]}
        said = {name: (tier["objects"], tier["used_bytes"]) for name, tier in tiers.items()}
        summed = {"dram": [0, 0], "nvme": [0, 0]}
        found = {"dram": 0, "nvme": 0}
        blocks = [0, 0]
        for session in self.ledger.in_state(LIVE):
            usage = self.engine.call("GET", f"/v1/sessions/{session.id}").json["usage"]
            for name, total in summed.items():
                total[0] += usage[name + "_blocks"]
                total[1] += usage[name + "_bytes"]
            blocks[0] += usage["blocks"]
            for pool in self.world.pools:
                known = session.known(pool)
                for tier in self.lookup(session, known) if known else []:
                    blocks[1] += tier != "none"
                    for name in found:
                        found[name] += name in tier
        summed = {name: tuple(total) for name, total in summed.items()}
        return said == summed and all(said[name][0] == found[name] for name in found) and blocks[0] == blocks[1], \
            f"tiers say {said}, sessions say {summed}, lookups find {found}, blocks {blocks}"

    def usage(self):
        """What is erased is dropped after its certificate, so the numbers may need a moment, and no more than that."""
        try:
            wait_until(lambda: self.counted()[0], 5, "usage")
        except TimeoutError:
            self.ledger.violate("usage: " + self.counted()[1])
