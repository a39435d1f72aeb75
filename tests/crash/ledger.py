"""What the server has promised so far, by its answers alone. Threads write here; the checks read when none of them runs.

A promise is noted only after its answer was read; that something was asked for is noted before it is sent. So whatever
a kill cuts off is known as "may be there, may be not".
"""
import threading

from engine import block_hash

LIVE, ASKED, ACCEPTED = "live", "asked", "accepted"


class Block:
    def __init__(self, pool, index, session):
        self.pool, self.index, self.hash = pool, index, block_hash(session, pool.name, index)
        self.durable = False  # acknowledged as durable


class Session:
    def __init__(self, identity):
        self.id, self.blocks, self.state = identity, {}, LIVE
        self.erasure = self.certificate = self.form = None

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

    def add(self, identity):
        with self.lock:
            self.sessions[identity] = Session(identity)
            return self.sessions[identity]

    def in_state(self, *states):
        with self.lock:
            return [session for session in self.sessions.values() if session.state in states]

    def violate(self, text):
        with self.lock:
            self.violations.append(text)

    def blame(self, condition, text):
        """Notes a violation when the condition does not hold; the condition."""
        if not condition:
            self.violate(text)
        return condition
