"""What goes on while the server is killed: offloads of both kinds, restores, demotion, erasures, new sessions.

Every answer is judged on the spot as well: an answer may be refused for being busy, but never be wrong.
"""
import random
import threading

from engine import MODEL, block_bytes
from ledger import ACCEPTED, ASKED, LIVE
from server import Gone

SESSIONS_LIVE_MAX = 8
BLOCKS_PER_POOL_MAX = 40
CALL_BLOCKS_MAX = 8
# Refusals under load or while something restarts; anything else is wrong.
REFUSALS = {"busy", "lease_expired", "audit_unavailable", "db_unavailable", "shutting_down", "timeout"}


def create_session(world, client, **members):
    answer = client.call("POST", "/v1/sessions", {"model": MODEL, **members})
    if answer.status == 201:
        return world.ledger.add(answer.json["id"])
    judge(world, answer, "session create")
    return None


def judge(world, answer, what, erased_is_fine=False):
    """A refusal has to be one of those that tell the caller to try again."""
    code = answer.json.get("code") if answer.body else None
    fine = code in REFUSALS or (erased_is_fine and answer.status == 410)
    world.ledger.blame(fine, f"{what}: answered {answer}")


class Slots:
    """A thread's own pages of every pool."""

    def __init__(self, number, threads):
        self.number, self.threads = number, threads

    def of(self, pool, count):
        first = self.number * (pool.slots // self.threads)
        return list(range(first, first + count))


def transfer(client, route, session, blocks, slots, **members):
    return client.call("POST", route, {"session_id": session.id, "pool_id": blocks[0].pool.id,
                                       "hashes": [block.hash for block in blocks], "slots": slots, **members})


def offload(world, client, session, pool, indices, slots, wait):
    blocks = [session.block(pool, index) for index in indices]
    slots = slots.of(pool, len(blocks))
    for block, slot in zip(blocks, slots):
        pool.write(slot, block_bytes(block.hash, pool.page_bytes))
    answer = transfer(client, "/v1/offloads", session, blocks, slots, wait=wait)
    if answer.status != 200:
        judge(world, answer, f"offload to {session.id}", session.state != LIVE)
        return
    for block, result in zip(blocks, answer.json["results"]):
        if result in ("stored", "present"):
            block.durable = block.durable or wait == "durable"
        else:
            fine = result in ("busy", "timeout") or (result == "erased" and session.state != LIVE)
            fine = fine or (result == "failed" and "=fail@" in world.server.fault)
            world.ledger.blame(fine, f"offload to {session.id}: {result} of block {block.index}")


def restore(world, client, session, blocks, slots, what):
    """Restores and compares; the results, or None where the answer was a refusal."""
    pool = blocks[0].pool
    slots = slots.of(pool, len(blocks))
    for slot in slots:
        pool.write(slot, pool.blank)
    answer = transfer(client, "/v1/restores", session, blocks, slots)
    if answer.status != 200:
        judge(world, answer, f"{what}: restore of {session.id}", session.state != LIVE)
        for slot in slots:
            world.ledger.blame(pool.read(slot) == pool.blank, f"{what}: a refused restore wrote to a page")
        return None
    results = answer.json["results"]
    for block, slot, result in zip(blocks, slots, results):
        wanted = block_bytes(block.hash, pool.page_bytes) if result == "restored" else pool.blank
        world.ledger.blame(pool.read(slot) == wanted, f"{what}: wrong bytes in the page of block {block.index} of "
                                                     f"{session.id}, answered {result}")
    return results


def ask_erasure(world, client, session, wait):
    session.state = ASKED
    body = {"scope": {"session_id": session.id}, "basis": "gdpr_art17", "reason": "crash drill"}
    answer = client.call("POST", "/v1/erasures", body, **({"Prefer": f"wait={wait}"} if wait else {}))
    if answer.status in (200, 202):
        session.erasure = answer.json["id"]
        session.state = ACCEPTED
    else:
        judge(world, answer, f"erasure of {session.id}")


def ask_tenant(world, client):
    """All that there are, in one step."""
    for session in world.ledger.in_state(LIVE):
        session.state = ASKED
    answer = client.call("POST", "/v1/erasures", {"scope": {"tenant_id": world.tenant}, "basis": "contract"})
    if answer.status not in (200, 202):
        judge(world, answer, "erasure of the tenant")


def ask_many(world, client, sessions, label):
    """All at once, by a label that they have. Which erasure each has is found out afterwards."""
    for session in sessions:
        session.state = ASKED
    answer = client.call("POST", "/v1/erasures", {"scope": {"label": label}, "basis": "contract"})
    if answer.status not in (200, 202):
        judge(world, answer, f"erasure by {label}")


class Workload:
    """Threads that work until the server is gone, or until they are told to stop."""

    OFFLOADERS = 2

    def __init__(self, world, seed, erase_first):
        self.world, self.stopping = world, threading.Event()
        self.busy = threading.Event()  # something was acknowledged: from here on a kill cuts into work
        jobs = [self.offloads] * self.OFFLOADERS + [self.restores, self.erasures, self.drains]
        self.erase_first = erase_first
        self.threads = [threading.Thread(target=self.run, args=(job, random.Random(f"{seed}/{i}"), Slots(i, len(jobs))))
                        for i, job in enumerate(jobs)]

    def start(self):
        for thread in self.threads:
            thread.start()

    def join(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def run(self, job, rng, slots):
        try:
            job(self.world, rng, slots)
        except Gone:
            pass
        except Exception as error:  # a thread that dies of a fault in the drill must not look like a quiet server
            self.world.ledger.violate(f"{job.__name__}: {error!r}")

    def session(self, rng, *states):
        sessions = self.world.ledger.in_state(*states)
        return rng.choice(sessions) if sessions else None

    def offloads(self, world, rng, slots):
        client = world.client("engine")
        while not self.stopping.is_set():
            # Also those on their way out: they must take nothing in any more, but may still live after all.
            sessions = world.ledger.in_state(LIVE, ASKED)
            if len(sessions) < 3 or (len(sessions) < SESSIONS_LIVE_MAX and rng.random() < 0.1):
                create_session(world, client)
                continue
            session = rng.choice(sessions)
            pool = rng.choice(world.pools)
            first = rng.randrange(BLOCKS_PER_POOL_MAX)
            indices = range(first, min(first + rng.randint(1, CALL_BLOCKS_MAX), BLOCKS_PER_POOL_MAX))
            offload(world, client, session, pool, indices, slots, rng.choice(["dram", "durable"]))
            self.busy.set()

    def restores(self, world, rng, slots):
        client = world.client("engine")
        while not self.stopping.is_set():
            session = self.session(rng, LIVE)
            known = session.known(rng.choice(world.pools)) if session else []
            if not known:
                self.stopping.wait(0.005)
                continue
            blocks = rng.sample(known, min(len(known), rng.randint(1, CALL_BLOCKS_MAX)))
            durable = [block.durable for block in blocks]
            results = restore(world, client, session, blocks, slots, "under load") or []
            for block, promised, result in zip(blocks, durable, results):
                fine = result in ("restored", "busy", "timeout") or (result == "missing" and not promised)
                fine = fine or session.state != LIVE
                world.ledger.blame(fine, f"under load: {result} of block {block.index} of {session.id}")

    def erasures(self, world, rng, _slots):
        client = world.client("admin")
        if not self.erase_first:
            self.stopping.wait(rng.random() * 0.2)
        while not self.stopping.is_set():
            session = self.session(rng, LIVE)
            if session is None or (len(world.ledger.in_state(LIVE)) < 3 and not self.erase_first):
                self.stopping.wait(0.01)
                continue
            ask_erasure(world, client, session, rng.choice([0, 0, 1]))
            self.stopping.wait(rng.random() * 0.3)

    def drains(self, world, rng, _slots):
        client = world.client("operator")
        while not self.stopping.is_set():
            self.stopping.wait(rng.random() * 0.1)
            answer = client.call("POST", "/v1/tiers/dram:drain", Prefer="wait=30")
            if answer.status not in (200, 202):
                judge(world, answer, "drain")
