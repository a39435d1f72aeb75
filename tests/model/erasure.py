"""
The protocol of erasure as a model: one database, two providers of roots, some instances with what they have in memory, erasers that
die between any two steps, and an adversary who keeps everything that was ever written. Keys are numbers, sealing is "whoever has this
number has those". What must hold is checked after every step of a walk; `FAULTS` are ways to build it wrong, each of which a walk finds.
It must not know the product's code: it is what that code is held to.
"""
import random

TTL = 3  # of a lease, in ticks of the clock
SLOTS = 3  # of a leaf
LEAVES = 2

# What happens more often, or less, in a walk. Everything must hold in all of them.
CLIMATES = {
    "even": {},
    "cut off": {"part": 4, "join": 0.5, "crash": 0.2, "pause": 0.3, "restore": 0.1},
    "crowded": {"take_over": 2, "pause": 3, "resume": 1.5, "restore": 0.1, "use": 0.3},
    "busy": {"open_begin": 3, "open_end": 2, "request": 2, "use": 3, "restore": 0.1},
    "restored": {"restore": 3, "backup": 2, "put_back": 2, "request": 2},
}

FAULTS = {
    "adopt_staged": ("a staged root that was found is used, instead of being thrown away", "restored"),
    "compare_epochs": ("roots are compared by their epoch's number, not by their random id", "restored"),
    "no_purge": ("the certificate does not wait until instances have wiped what the old root opened", "even"),
    "purge_spares_calls": ("a purge forgets what calls that began before it hold", "even"),
    "replaced_keeps_root": ("an eraser that was replaced keeps the root secret that it made, beyond a purge", "busy"),
    "no_wait_for_backend": ("who takes over does not wait for the commit of the one before", "even"),
    "no_fence": ("the re-key does not wait for instances to acknowledge the revocation", "busy"),
    "no_lease_check": ("an instance uses keys after its lease", "busy"),
    "no_wipe_at_deadline": ("an instance that runs keeps what it has in memory when its lease ends, until it renews", "even"),
    "numbers_before_commit": ("a revocation has its number before its commit, as from a sequence", "busy"),
    "late_open": ("an opening that began before the revocation puts its key into memory after it", "even"),
    "slot_reuse": ("the slot of an erased session is given out again", "even"),
    "stale_fill": ("a session is stored without looking whether its slot is still free in the leaf that was read", "even"),
    "no_fence_number": ("statements of an eraser that was replaced still count", "even"),
    "look_last": ("which root is staged is asked after the fence was compared, and it is thrown away", "even"),
    "discard_unnamed": ("a discard takes whatever is staged", "even"),
    "activate_first": ("a commit makes the new root active before it destroys the old one", "even"),
    "keep_leaf_key": ("a leaf is sealed again under the secret it had", "even"),
    "keep_root_secret": ("the new root wraps the secret of the old one", "even"),
    "one_provider": ("after a crash in a migration only the provider that the database names is asked", "even"),
}


class Broken(Exception):
    """Something that must hold does not."""


class Provider:
    """One wrapping key a root; every operation names the ids it is about."""

    def __init__(self):
        self.keys, self.active, self.staged = {}, None, None


class Database:
    """What is committed. Values are never changed in place, so that a copy is a backup."""

    def __init__(self):
        self.root = self.provider = self.wrapped = self.top = None
        self.leaves = {}  # index -> (sealed under, {slot: secret}, id of the node)
        self.sessions = {}  # id -> (state, leaf index, node id, slot)
        self.revocations = ()  # of (number, session), in the order of their commits
        self.head = self.fence = 0
        self.job = None  # (state, sessions, number of the last revocation, old root)
        self.instances = {}  # index -> (acknowledged number, acknowledged root, lease ends)

    def copy(self):
        other = Database()
        other.__dict__.update({name: dict(value) if isinstance(value, dict) else value for name, value in self.__dict__.items()})
        return other


class Instance:
    """A process: what it has in memory, and its eraser's place in the protocol, if it has one."""

    def __init__(self):
        self.start(0)

    def start(self, now):
        self.root = None  # whose secrets it has
        self.nodes = set()  # E and node secrets
        self.keys = {}  # session -> S
        self.graves = set()  # sessions whose revocation was applied
        self.seen = 0  # the last revocation it has applied
        self.deadline = now  # of its lease
        self.opening = self.making = None  # calls on their way: secrets they hold
        self.eraser = None
        self.paused = False
        self.parted = False  # it runs, and does not reach the database

    def wipe(self):
        self.root, self.opening, self.making = None, None, None
        self.nodes, self.keys = set(), {}

    def memory(self):
        held = self.nodes | set(self.keys.values())
        for call in (self.opening, self.making):
            held |= call["secrets"] if call else set()
        return held | ({self.eraser["fresh"]} if self.eraser and self.eraser.get("fresh") else set())


class World:
    def __init__(self, seed, fault=None, climate=None):
        self.random, self.fault, self.climate = random.Random(seed), fault, climate
        self.now = self.last = self.names = 0
        self.written = {}  # everything ever written, also by transactions that failed: sealed under -> secrets in it
        self.providers = {"a": Provider(), "b": Provider()}
        self.db, self.right, self.backups = Database(), None, []
        self.pending = None  # a re-key whose backend has not committed yet
        self.requests = []  # requests that have a number and no commit (numbers_before_commit)
        self.instances = [Instance() for _ in range(2)]
        self.truth = {}  # session -> S
        self.certified = set()
        self.quarantined = self.restored = False
        self.quarantines = 0
        self.trace = []
        self.first_root()

    # --- words -----------------------------------------------------------------------------------------------------------------------

    def is_broken(self, how):
        return self.fault == how

    def secret(self):
        self.last += 1
        return self.last

    def write(self, key, secrets):
        self.written.setdefault(key, set()).update(secrets)

    def same(self, one, other):
        if self.is_broken("compare_epochs") and one and other:
            return one[0] == other[0]
        return one == other

    def first_root(self):
        root, secret = (0, self.secret()), self.secret()
        provider = self.providers["a"]
        provider.keys[root], provider.active = self.secret(), root
        self.db.root, self.db.provider, self.db.wrapped = root, "a", (root, secret)
        self.write(provider.keys[root], {secret})
        top = {}
        for index in range(LEAVES):
            top[index] = self.secret()
            self.db.leaves[index] = self.new_leaf(top[index])
        self.db.top = (secret, top)
        self.write(secret, top.values())

    def new_leaf(self, key):
        slots = {self.secret(): self.secret() for _ in range(SLOTS)}  # a slot's name is never given again
        self.write(key, slots.values())
        return (key, slots, self.secret())

    def enter_quarantine(self):
        self.quarantined = True
        self.quarantines += 1
        if not self.restored:
            raise Broken("quarantine, and nobody had restored anything")
        for instance in self.instances:
            instance.eraser = None

    # --- what the adversary and the honest reader can open ----------------------------------------------------------------------------

    def reachable(self):
        """After the fact: all that was ever written, the providers, the memory of every instance that runs or has a lease."""
        known = {key for provider in self.providers.values() for key in provider.keys.values()}
        for instance in self.instances:
            if not (instance.paused and self.now >= instance.deadline):  # limit L5, named in the certificate
                known |= instance.memory()
        fresh = list(known)
        while fresh:
            for secret in self.written.get(fresh.pop(), ()):
                if secret not in known:
                    known.add(secret)
                    fresh.append(secret)
        return known

    def opens(self, db, session):
        _, index, _, slot = db.sessions[session]
        key = self.providers[db.provider].keys.get(db.root)
        if key is None or db.wrapped[1] not in self.written.get(key, ()) or db.top[0] != db.wrapped[1]:
            return None
        leaf = db.leaves[index]
        return leaf[1].get(slot) if leaf[0] == db.top[1][index] else None

    def check(self):
        known = self.reachable()
        for session in self.certified:
            if self.truth[session] in known:
                raise Broken(f"session {session} is certified and can be opened")
        if self.quarantined:
            return
        for session, row in self.db.sessions.items():
            if row[0] == "active" and self.opens(self.db, session) != self.truth[session]:
                raise Broken(f"session {session} lives and cannot be opened")

    # --- sessions --------------------------------------------------------------------------------------------------------------------

    def may_work(self, i):
        instance = self.instances[i]
        return not self.quarantined and not instance.paused and \
            (self.now < instance.deadline or self.is_broken("no_lease_check"))

    def may_ask(self, i):
        return self.may_work(i) and not self.instances[i].parted

    def walk_to(self, instance, index):
        """What a walk from the root to a leaf leaves in memory."""
        if instance.root != self.db.root:
            instance.nodes = set()
        instance.root = self.db.root
        held = {self.db.wrapped[1], self.db.top[1][index]}
        instance.nodes |= held
        return held

    def is_taken(self, slot):
        return any(row[3] == slot and not (row[0] == "erased" and self.is_broken("slot_reuse")) for row in self.db.sessions.values())

    def make_begin(self, i):
        instance = self.instances[i]
        if not self.may_ask(i) or instance.making or len(self.db.sessions) > 8:
            return False
        index = self.random.randrange(LEAVES)
        _, slots, node = self.db.leaves[index]
        free = [slot for slot in slots if not self.is_taken(slot)]
        if not free:
            return False
        slot = self.random.choice(free)
        held = self.walk_to(instance, index) | {slots[slot]}
        instance.making = {"row": ("active", index, node, slot), "secrets": held, "key": slots[slot], "root": self.db.root}
        return True

    def make_end(self, i):
        """kroot FOR SHARE: waits for a re-key, then the leaf is looked at again."""
        instance = self.instances[i]
        if not instance.making or not self.may_ask(i) or self.pending:
            return False
        call, instance.making = instance.making, None
        _, index, node, slot = call["row"]
        if (self.is_taken(slot) or self.db.leaves[index][2] != node) and not self.is_broken("stale_fill"):
            return True
        self.names += 1
        self.db.sessions[self.names] = call["row"]
        self.truth[self.names] = call["key"]
        instance.keys[self.names] = call["key"]
        return True

    def open_begin(self, i):
        instance = self.instances[i]
        live = [s for s, row in self.db.sessions.items() if row[0] == "active" and s not in instance.keys]
        if not self.may_ask(i) or instance.opening or not live:
            return False
        session = self.random.choice(live)
        key = self.opens(self.db, session)
        held = self.walk_to(instance, self.db.sessions[session][1]) | {key}
        instance.opening = {"session": session, "key": key, "secrets": held, "root": self.db.root}
        return True

    def open_end(self, i):
        instance = self.instances[i]
        if not instance.opening or not self.may_work(i):
            return False
        call, instance.opening = instance.opening, None
        if call["session"] not in instance.graves or self.is_broken("late_open"):
            instance.keys[call["session"]] = call["key"]
        return True

    def use(self, i):
        instance = self.instances[i]
        if not self.may_work(i) or not instance.keys:
            return False
        session = self.random.choice(sorted(instance.keys))
        state = self.db.job[0] if self.db.job and session in self.db.job[1] else "REQUESTED"
        if session in self.certified or state != "REQUESTED":
            raise Broken(f"session {session} was used and is fenced")
        return True

    # --- leases ----------------------------------------------------------------------------------------------------------------------

    def renew(self, i):
        """A renewal counts only after what it learnt was applied: first wiped, then acknowledged."""
        instance = self.instances[i]
        if instance.paused or instance.parted or self.quarantined:
            return False
        if self.now >= instance.deadline and not self.is_broken("no_lease_check"):
            instance.wipe()
        for number, session in self.db.revocations:
            if number > instance.seen or not self.is_broken("numbers_before_commit"):
                instance.graves.add(session)
                instance.keys.pop(session, None)
                if instance.opening and instance.opening["session"] == session and not self.is_broken("late_open"):
                    instance.opening = None
        instance.seen = max([instance.seen] + [number for number, _ in self.db.revocations])
        if instance.root != self.db.root:
            instance.root, instance.nodes = None, set()
        for name in ("opening", "making"):
            call = getattr(instance, name)
            if call and call["root"] != self.db.root and not self.is_broken("purge_spares_calls"):
                setattr(instance, name, None)
        if instance.eraser and not self.owns(instance.eraser) and not self.is_broken("replaced_keeps_root"):
            instance.eraser = None  # with the secret of the root that it was about to commit
        self.db.instances[i] = (instance.seen, self.db.root, self.now + TTL)
        instance.deadline = self.now + TTL
        return True

    def pause(self, i):
        if self.instances[i].paused:
            return False
        self.instances[i].paused = True
        return True

    def part(self, i):
        if self.instances[i].parted:
            return False
        self.instances[i].parted = True
        return True

    def join(self, i):
        if not self.instances[i].parted:
            return False
        self.instances[i].parted = False
        return True

    def resume(self, i):
        instance = self.instances[i]
        if not instance.paused:
            return False
        instance.paused = False
        if self.now >= instance.deadline and not self.is_broken("no_lease_check"):
            instance.wipe()
        return True

    def crash(self, i):
        self.instances[i].start(self.now)
        if self.pending and self.pending["by"] == i:
            self.pending["by"] = None
        self.db.instances.pop(i, None)
        return True

    def tick(self, _):
        self.now += 1
        for instance in self.instances:
            if not instance.paused and self.now >= instance.deadline and not self.is_broken("no_wipe_at_deadline"):
                instance.wipe()
        return True

    # --- requests --------------------------------------------------------------------------------------------------------------------

    def request(self, _):
        """Tx0. The number is taken under the lock of its row, so that numbers have the order of commits."""
        live = [s for s, row in self.db.sessions.items() if row[0] == "active" and s not in [r[1] for r in self.requests]]
        if self.quarantined or not live:
            return False
        self.db.head += 1
        self.requests.append((self.db.head, self.random.choice(live)))
        if not self.is_broken("numbers_before_commit"):
            self.request_commit(None)
        return True

    def request_commit(self, _):
        if not self.requests:
            return False
        number, session = self.requests.pop(self.random.randrange(len(self.requests)))
        self.db.sessions[session] = ("erasing",) + self.db.sessions[session][1:]
        self.db.revocations += ((number, session),)
        return True

    # --- the eraser ------------------------------------------------------------------------------------------------------------------

    def take_over(self, i):
        """kroot FOR UPDATE waits for the backend of the one before; only then is the provider touched."""
        if self.quarantined or self.instances[i].paused or self.instances[i].parted:
            return False
        if self.pending and not self.is_broken("no_wait_for_backend"):
            self.backend_ends(i)
        self.db.fence += 1
        self.instances[i].eraser = {"fence": self.db.fence, "next": "look"}
        return True

    def owns(self, eraser):
        return eraser["fence"] == self.db.fence or self.is_broken("no_fence_number")

    def found(self):
        """Active and staged root, as (provider, id) or None, of all that are configured."""
        names = [self.db.provider] if self.is_broken("one_provider") else sorted(self.providers)
        active = [(n, self.providers[n].active) for n in names if self.providers[n].active]
        staged = [(n, self.providers[n].staged) for n in names if self.providers[n].staged]
        return active[0] if active else None, staged[0] if staged else None, len(active) + len(staged) > 2

    def look(self, i, eraser):
        """Which roots there are is asked before the fence is compared: what was staged by a later eraser is then never thrown away."""
        eraser.update(next="recover", found=self.found())

    def recover(self, i, eraser):
        if self.is_broken("look_last"):
            eraser["found"] = self.found()
        elif self.lost(i, eraser):
            return
        active, staged, strange = eraser.pop("found")
        is_root = lambda found: found and found[0] == self.db.provider and self.same(found[1], self.db.root)
        if strange:
            self.enter_quarantine()
        elif is_root(active) and staged:
            eraser.update(next="discard", staged=staged)
        elif is_root(active):
            eraser["next"] = "work"
        elif is_root(staged):
            eraser.update(next="destroy", root=self.db.root, provider=self.db.provider, old=active)
        else:
            self.enter_quarantine()

    def discard(self, i, eraser):
        name, root = eraser["staged"]
        provider = self.providers[name]
        eraser["next"] = "work"
        if self.is_broken("adopt_staged"):
            return
        if self.is_broken("discard_unnamed") or provider.staged == root:
            provider.keys.pop(provider.staged, None)
            provider.staged = None

    def job_state(self):
        return self.db.job[0] if self.db.job else None

    def move(self, state):
        self.db.job = (state,) + self.db.job[1:]
        self.archive()

    def erase(self, i):
        """The next step of this instance's eraser."""
        instance = self.instances[i]
        eraser = instance.eraser
        if not eraser or instance.paused or instance.parted or self.quarantined:
            return False
        if self.db.job is None and eraser["next"] not in ("look", "recover", "discard", "destroy", "work"):
            instance.eraser = None
        else:
            getattr(self, eraser["next"])(i, eraser)
        return True

    def lost(self, i, eraser):
        """A statement carried a fence that is no longer ours: nothing was changed, and this eraser ends."""
        if not self.owns(eraser):
            self.instances[i].eraser = None
            return True
        return False

    def work(self, i, eraser):
        """What the job's row says comes next."""
        if self.lost(i, eraser):
            return
        if self.db.job is None:
            batch = frozenset(s for s, row in self.db.sessions.items() if row[0] == "erasing")
            last = max([number for number, s in self.db.revocations if s in batch], default=0)
            if batch or self.random.random() < 0.1:
                self.db.job = ("REQUESTED", batch, last, self.db.root)
                eraser.update(next="fence_wait", since=self.now)
        else:
            if self.job_state() == "REKEYED":  # the provider is done, as recover saw; the row was not told
                self.move("DESTROYED")
            eraser["next"] = {"REQUESTED": "fence_wait", "FENCED": "stage", "DESTROYED": "purge", "PURGED": "verify",
                              "VERIFIED": "certify"}[self.job_state()]
            eraser["since"] = self.now  # an eraser that was started again waits afresh

    def is_silent(self, i, since):
        """Its lease has run out by our own clock, counted from when we began to wait."""
        return self.now > since + TTL

    def fence_wait(self, i, eraser):
        if self.lost(i, eraser):
            return
        for other, (seen, _, _) in self.db.instances.items():
            if seen < self.db.job[2] and not self.is_silent(other, eraser["since"]) and not self.is_broken("no_fence"):
                return
        self.move("FENCED")
        eraser["next"] = "stage"

    def stage(self, i, eraser):
        """The provider is asked without the database: who was replaced may still stage, which the next one throws away."""
        target = self.random.choice("ab") if not self.db.job or not self.db.job[1] else self.db.provider
        staged = [(name, provider.staged) for name, provider in self.providers.items() if provider.staged]
        if staged and self.is_broken("adopt_staged"):
            eraser.update(next="rekey", provider=staged[0][0], root=staged[0][1])
            return
        if staged:
            self.instances[i].eraser = None  # not ours: start again
            return
        root = (self.db.root[0] + 1, self.secret())
        provider = self.providers[target]
        provider.keys[root], provider.staged = self.secret(), root
        eraser.update(next="rekey", root=root, provider=target)

    def rekey(self, i, eraser):
        """Tx1: fresh secrets for every node on the way of a dropped slot, and the root; all of it is written whether it commits or not."""
        if self.pending or self.lost(i, eraser):
            return
        provider = self.providers[eraser["provider"]]
        if eraser["root"] not in provider.keys or self.job_state() != "FENCED" or self.db.root != self.db.job[3]:
            self.instances[i].eraser = None
            return
        secret = self.db.wrapped[1] if self.is_broken("keep_root_secret") else self.secret()
        eraser["fresh"] = secret
        self.write(provider.keys[eraser["root"]], {secret})
        leaves, top = dict(self.db.leaves), dict(self.db.top[1])
        for session in self.db.job[1]:
            _, index, _, slot = self.db.sessions[session]
            self.reseal(leaves, top, index, slot)
        self.write(secret, top.values())
        self.pending = {"by": i, "fence": eraser["fence"], "root": eraser["root"], "provider": eraser["provider"],
                        "wrapped": (eraser["root"], secret), "top": (secret, top), "leaves": leaves}
        eraser["next"] = "rekey_answer"

    def reseal(self, leaves, top, index, slot):
        key, slots, _ = leaves[index]
        if not self.is_broken("slot_reuse"):
            slots = {s: value for s, value in slots.items() if s != slot}
        key = key if self.is_broken("keep_leaf_key") else self.secret()
        top[index] = key
        if slots:
            self.write(key, slots.values())
            leaves[index] = (key, slots, self.secret())
        else:  # all spent and erased: another leaf takes its place
            leaves[index] = self.new_leaf(key)

    def rekey_answer(self, i, eraser):
        if self.pending and self.pending["by"] == i:
            answer = self.random.choice(["committed", "committed", "failed", "in doubt"])
            if answer == "in doubt":
                self.pending["by"] = None
                self.instances[i].eraser = None
                return
            self.backend_ends(i, answer == "committed")
        if self.db.root == eraser["root"]:
            eraser.pop("fresh", None)
            eraser.update(next="destroy", old=self.found_old(eraser))
        else:
            self.instances[i].eraser = None

    def found_old(self, eraser):
        for name, provider in self.providers.items():
            if provider.active and provider.active != eraser["root"]:
                return (name, provider.active)
        return None

    def backend_ends(self, _, commits=None):
        """The transaction that held kroot ends, one way or the other."""
        if not self.pending:
            return False
        change, self.pending = self.pending, None
        if commits is None:
            commits = self.random.random() < 0.5
        if commits:
            self.db.root, self.db.provider = change["root"], change["provider"]
            self.db.wrapped, self.db.top, self.db.leaves = change["wrapped"], change["top"], change["leaves"]
            if self.db.job:
                self.move("REKEYED")
        return True

    def backend_late(self, i):
        """A backend whose client is gone ends by itself."""
        return self.pending is not None and self.pending["by"] is None and self.backend_ends(i)

    def destroy(self, i, eraser):
        """commit(R', R): destroys first, activates second; the process may end in between, and the same call again ends the same."""
        fresh, old = self.providers[eraser["provider"]], eraser["old"]
        dies = self.random.random() < 0.25
        steps = [lambda: self.destroy_old(old, eraser["root"]), lambda: self.activate(fresh, eraser["root"])]
        if self.is_broken("activate_first"):
            steps.reverse()
        steps[0]()
        if dies:
            self.crash(i)
            return
        steps[1]()
        if self.lost(i, eraser):
            return
        if self.db.job:
            self.move("DESTROYED")
        eraser.update(next="purge", since=self.now)

    def destroy_old(self, old, root):
        if old and self.providers[old[0]].keys.get(old[1]) is not None and old[1] != root:
            provider = self.providers[old[0]]
            del provider.keys[old[1]]
            provider.active = None if provider.active == old[1] else provider.active

    def activate(self, provider, root):
        if provider.staged == root:
            provider.staged, provider.active = None, root

    def purge(self, i, eraser):
        if self.lost(i, eraser):
            return
        for other, (_, root, _) in self.db.instances.items():
            if root != self.db.root and not self.is_silent(other, eraser["since"]) and not self.is_broken("no_purge"):
                return
        self.move("PURGED")
        eraser["next"] = "verify"

    def verify(self, i, eraser):
        if self.lost(i, eraser):
            return
        active, staged, _ = self.found()
        gone = active and active[1] == self.db.root and not staged
        for session in self.db.job[1]:
            gone = gone and (self.opens(self.db, session) is None or self.is_broken("slot_reuse"))
        if not gone:
            self.instances[i].eraser = None  # looked at again by the next one
            return
        self.move("VERIFIED")
        eraser["next"] = "certify"

    def certify(self, i, eraser):
        if self.lost(i, eraser):
            return
        for session in self.db.job[1]:
            self.db.sessions[session] = ("erased",) + self.db.sessions[session][1:]
            self.certified.add(session)
        self.db.job = None
        eraser["next"] = "work"

    # --- operators -------------------------------------------------------------------------------------------------------------------

    def archive(self):
        """Any moment can be restored, because the log of the database is kept; some are remembered here."""
        self.backups.append(self.db.copy())
        if len(self.backups) > 8:
            self.backups.pop(self.random.randrange(len(self.backups)))

    def backup(self, _):
        if self.quarantined:
            return False
        self.archive()
        return True

    def restore(self, _):
        """An older backup becomes the database, or a standby that lagged is promoted; every instance is started again."""
        if self.quarantined or not self.backups:
            return False
        self.become(self.random.choice(self.backups).copy(), self.db)
        return True

    def put_back(self, _):
        if not self.quarantined or self.right is None:
            return False
        self.become(self.right, None)
        if self.quarantined:
            raise Broken("the right database was put back, and it does not heal")
        return True

    def become(self, db, right):
        if self.pending:
            self.backend_ends(None)
        self.requests = []
        self.db, self.right, self.quarantined = db, right, False
        self.db.instances = {}
        self.restored = True
        for i in range(len(self.instances)):
            self.crash(i)
        self.recognise()

    def recognise(self):
        """What a start decides: the root of the database is active or staged here, or nothing is touched."""
        active, staged, strange = self.found()
        known = [found for found in (active, staged) if found and found[0] == self.db.provider and self.same(found[1], self.db.root)]
        if strange or not known:
            self.enter_quarantine()
        else:
            self.right = None

    # --- walks -----------------------------------------------------------------------------------------------------------------------

    EVENTS = {"make_begin": 4, "make_end": 4, "open_begin": 4, "open_end": 4, "use": 6, "renew": 6, "pause": 1, "resume": 2, "part": 1,
              "join": 2, "crash": 1, "tick": 5, "request": 3, "request_commit": 2, "take_over": 3, "erase": 30, "backend_late": 2,
              "backup": 1, "restore": 1, "put_back": 2}

    def step(self, name, i):
        self.trace.append(f"{name} {i}")
        if getattr(self, name)(i):
            self.check()
        else:
            self.trace.pop()

    def walk(self, steps):
        climate = CLIMATES[self.climate or self.random.choice(list(CLIMATES))]
        taste = self.random.choice([[1], [0.5, 1, 2]])
        weights = [weight * climate.get(name, 1) * self.random.choice(taste) for name, weight in self.EVENTS.items()]
        i = 0
        for name in self.random.choices(list(self.EVENTS), weights, k=steps):
            if self.random.random() < 0.2:  # one instance does much while another does nothing
                i = self.random.randrange(len(self.instances))
            self.step(name, i)
        self.settle()

    def settle(self):
        """With nobody dying any more every job ends."""
        if self.quarantined:
            return
        for i in range(len(self.instances)):
            self.resume(i)
            self.join(i)
        while self.requests:
            self.request_commit(None)
        for _ in range(200):
            if self.quarantined or not (self.db.job or any(row[0] == "erasing" for row in self.db.sessions.values())):
                return
            for name in ("tick", "backend_late", "renew"):
                for i in range(len(self.instances)):
                    self.step(name, i)
            if not self.instances[0].eraser:
                self.step("take_over", 0)
            self.step("erase", 0)
        raise Broken("an erasure does not end")
