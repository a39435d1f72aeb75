"""What the server has promised so far, by its answers alone. Threads write here; the checks read when none of them runs.

A promise is noted only after its answer was read; that something was asked for is noted before it is sent. So whatever
a kill cuts off is known as "may be there, may be not".
"""
import collections
import threading

from engine import block_hash

LIVE, ASKED, ACCEPTED = "live", "asked", "accepted"
FALSE_CERTIFICATE, LOST_SESSION, NOT_ENDED, CHANGED, OTHER = KINDS = (
    "false certificates", "lost live sessions", "jobs that did not end", "certificates that changed", "other violations")


class Sum:
    """Of many runs: what the last line of a test says."""

    def __init__(self):
        self.runs = self.kills = 0
        self.kinds = collections.Counter()

    def good(self):
        return not any(self.kinds.values())

    def __str__(self):
        return f"{self.runs} runs, {self.kills} kills, " + ", ".join(f"{self.kinds[kind]} {kind}" for kind in KINDS)


class Block:
    def __init__(self, pool, index, session):
        self.pool, self.index, self.hash = pool, index, block_hash(session, pool.name, index)
        self.durable = False  # acknowledged as durable


class Session:
    def __init__(self, identity):
        self.id, self.blocks, self.state = identity, {}, LIVE
        self.erasure = self.certificate = self.form = self.statement = None

    def all(self):
        """A copy made in one step: a thread may be adding blocks (a `for` over the dictionary itself would notice)."""
        return list(self.blocks.values())

    def known(self, pool):
        return [block for block in self.all() if block.pool is pool]

    def block(self, pool, index):
        """The block, from now on known as one that may be there."""
        key = (pool.name, index)
        if key not in self.blocks:
            self.blocks[key] = Block(pool, index, self.id)
        return self.blocks[key]

    def durable(self):
        return [block for block in self.all() if block.durable]


class Ledger:
    def __init__(self):
        self.lock = threading.Lock()
        self.sessions = {}
        self.violations = []
        self.kinds = collections.Counter()  # of them: a promise that did not hold, by which it was

    def add(self, identity):
        with self.lock:
            self.sessions[identity] = Session(identity)
            return self.sessions[identity]

    def in_state(self, *states):
        with self.lock:
            return [session for session in self.sessions.values() if session.state in states]

    def violate(self, text, kind=OTHER):
        with self.lock:
            self.violations.append(text)
            self.kinds[kind] += 1

    def blame(self, condition, text, kind=OTHER):
        """Notes a violation when the condition does not hold; the condition."""
        if not condition:
            self.violate(text, kind)
        return condition
