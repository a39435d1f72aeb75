"""The thief: copies of the tier and of the database, taken while a session lived, against the root file as it is now.

It asks no server. A certificate for a key that still exists shows here, whatever the server believes.
"""
import json
import os
import shutil
import subprocess

from ledger import ACCEPTED, FALSE_CERTIFICATE, LIVE, LOST_SESSION, OTHER

ATTACKED_MAX = 4


class Loot:
    """Taken from a running server that has nothing to do."""

    def __init__(self, world):
        self.world, self.folder = world, os.path.join(world.folder, "loot")
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        operator, engine = world.client("operator"), world.client("engine")
        answer = operator.call("POST", "/v1/tiers/dram:drain", Prefer="wait=60")
        world.ledger.blame(answer.status == 200, f"drain of an idle server: {answer}")
        self.copies = {}
        for session in world.ledger.in_state(LIVE):
            usage = engine.call("GET", f"/v1/sessions/{session.id}").json["usage"]
            self.copies[session] = usage["nvme_blocks"]
        shutil.copyfile(os.path.join(world.server.state, "root"), self.path("root"))
        subprocess.run(["cp", "-a", "--sparse=always", os.path.join(world.server.state, "nvme"), self.path("nvme")],
                       check=True)
        world.server.dump(self.path("before.sql"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def attack(self, session, root, *dumps, leftovers=False):
        command = [self.world.tools.attack, "--json", "--root", root, "--arena", self.path("nvme"), "--session",
                   session.id] + ["--leftovers"] * leftovers
        for dump in dumps:
            command += ["--dump", dump]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            self.world.ledger.violate(f"the attack did not run: {run.stdout} {run.stderr}")
            return None
        tally = json.loads(run.stdout)
        return tally["opened"] + tally["leftovers_opened"], tally["copies"]

    def check(self):
        """Every copy of a session that lives opens, and none of one that is certified; all of the latter did open with
        the root of before, so what was tried is what was erased. How many erased sessions were tried."""
        now, tried = os.path.join(self.world.server.state, "root"), 0
        self.world.server.dump(self.path("after.sql"))
        before, after = self.path("before.sql"), self.path("after.sql")
        alive = [session for session in self.copies if session.state == LIVE and self.copies[session] > 0]
        erased = [session for session in self.copies if session.state != LIVE and self.copies[session] > 0]
        if not erased and len(alive) > 1:
            erased = [alive.pop()]
            self.erase(erased[0])
            self.world.server.dump(after)
        for session in alive[:1]:
            self.expect(session, self.copies[session], self.attack(session, now, before, after), "lives",
                        LOST_SESSION)
        for session in erased[:ATTACKED_MAX]:
            self.expect(session, self.copies[session], self.attack(session, self.path("root"), before),
                        "is erased, with the root from before")
            self.expect(session, 0, self.attack(session, now, before, after, leftovers=True),
                        f"is erased by {session.erasure}", FALSE_CERTIFICATE)
            tried += 1
        return tried

    def erase(self, session):
        """Where the kill came before any of these was erased: in all calm, on what the kills left."""
        session.state = ACCEPTED
        answer = self.world.client("admin").call("POST", "/v1/erasures", {"scope": {"session_id": session.id}},
                                                 Prefer="wait=30")
        if self.world.ledger.blame(answer.status == 200, f"erasure of idle {session.id}: {answer}"):
            session.erasure = answer.json["id"]

    def expect(self, session, opened, found, what, kind=OTHER):
        wanted = (opened, self.copies[session])
        self.world.ledger.blame(found == wanted, f"attack: {session.id} {what}: opened {found}, expected {wanted}", kind)
