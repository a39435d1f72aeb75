#!/usr/bin/env python3
"""Each fault point on the path of an erasure, at its first passing: killed there, started again, looked at, and robbed.
Then kills in the recovery from such a kill, on the path of erasures of many and of those that time brings, and at the very
first start. By default a sample that follows from the seed, with KV_LONG=1 all of them."""
import random
import sys
import time
import traceback

import workload
from attack import Loot
from drill import arguments, long_run, print_violations, programs_missing
from ledger import ACCEPTED, ASKED, OTHER, Sum
from points import ERASE_POINTS, FIRST_START, IN_RECOVERY, MANY_POINTS, TENANT_POINTS, UPGRADE_POINTS
from server import Cluster, Gone, wait_until
from world import Tools, World

SKIP = 77
SAMPLE = {"erase": 10, "recovery": 3, "first": 4, "many": 3, "tenant": 4, "upgrade": 3}
DEATH_SECONDS = 20
VICTIMS = 2


def session_with_blocks(world, **members):
    client, slots = world.client("engine"), workload.Slots(0, 2)
    session = workload.create_session(world, client, **members)
    for pool in world.pools:
        workload.offload(world, client, session, pool, range(3), slots, "durable")
    return session


def fill(world):
    """Two sessions with blocks on nvme, so that one is left as the control."""
    while len(world.ledger.in_state("live")) < VICTIMS:
        session_with_blocks(world)


def ask_one(world):
    workload.ask_erasure(world, world.client("admin"), world.ledger.in_state("live")[0], 0)


def killed_at(world, fault, ask):
    """Starts with the fault and asks for an erasure, unless one is under way; it has to die of it."""
    try:
        world.start(fault)
        if ask:
            ask(world)
    except Gone:
        pass
    world.ledger.blame(world.server.wait_dead(DEATH_SECONDS), f"{fault} did not come by")
    world.kill()


def on_the_path(world, *points):
    fill(world)
    loot = Loot(world)
    world.kill()
    for number, point in enumerate(points):
        killed_at(world, point + "=kill@1", ask_one if number == 0 else None)
    world.start()
    world.check()
    loot.check()


def after_the_certificate(world, point):
    """Killed on the way to the statement: it comes all the same, once."""
    fill(world)
    victim = world.ledger.in_state("live")[0]
    world.kill()
    killed_at(world, point + "=kill@1", ask_one)
    world.start()
    world.check()
    client = world.client("admin")
    wait_until(lambda: client.call("GET", f"/v1/erasures/{victim.erasure}/upgrade.txt").status == 200, DEATH_SECONDS,
               "the statement")
    world.check()
    world.ledger.blame(victim.statement is not None, f"{victim.erasure} has no statement")


def all_on_the_path(world, point):
    """All of a tenant in one step, killed there: certified once for all, or never asked for."""
    fill(world)
    loot = Loot(world)
    victims, before = world.ledger.in_state("live"), int(world.server.sql("SELECT count(*) FROM kvrun.erasure"))
    world.kill()
    killed_at(world, point + "=kill@1", lambda world: workload.ask_tenant(world, world.client("admin")))
    world.start()
    world.check()
    made = int(world.server.sql("SELECT count(*) FROM kvrun.erasure")) - before
    taken = {session.state == ACCEPTED for session in victims}
    world.ledger.blame(len(taken) == 1 and made == (1 if True in taken else 0), f"{made} erasures, sessions taken: {taken}")
    loot.check()


class ByLabel:
    """Two sessions by one request: both, or neither when it was cut off before it stood."""

    def __init__(self, world, number):
        self.label = {"crash": str(number)}
        self.victims = [session_with_blocks(world, labels=self.label) for _ in range(VICTIMS)]
        self.groups = int(world.server.sql("SELECT count(*) FROM kvrun.erasure_group"))

    def ask(self, world):
        workload.ask_many(world, world.client("admin"), self.victims, self.label)

    def settle(self, world):
        pass

    def check(self, world):
        taken = [session.state == ACCEPTED for session in self.victims]
        world.ledger.blame(all(taken) == any(taken), f"half of a request stands: {taken}")
        groups = int(world.server.sql("SELECT count(*) FROM kvrun.erasure_group"))
        world.ledger.blame(groups == self.groups + any(taken), f"{groups - self.groups} groups, sessions taken on: {taken}")


class ByLifetime:
    """A session whose time is over: it ends, whenever the server dies."""

    def __init__(self, world, _number):
        self.victim = session_with_blocks(world)

    def ask(self, world):
        self.victim.state = ASKED
        answer = world.client("admin").call("PATCH", f"/v1/sessions/{self.victim.id}", {"ttl_seconds": 1},
                                            Content_Type="application/merge-patch+json")
        world.ledger.blame(answer.status == 200, f"shortening a life: {answer}")

    def settle(self, world):
        client = world.client("admin")
        wait_until(lambda: client.call("GET", f"/v1/sessions/{self.victim.id}").status == 410, DEATH_SECONDS,
                   "the end of a session's time")

    def check(self, world):
        world.ledger.blame(self.victim.state == ACCEPTED, f"{self.victim.id} is {self.victim.state}")


class ByTenant:
    """A tenant whose grace time is over: it ends with both its sessions, in one step."""

    def __init__(self, world, number):
        operator = world.client("operator")
        self.name = f"goes-{number}"
        self.tenant = operator.call("POST", "/v1/tenants", {"name": self.name}).json["id"]
        key = operator.call("POST", f"/v1/tenants/{self.tenant}/api-keys", {"name": "a", "roles": ["tenant_admin"]})
        world.keys[self.tenant] = key.json["secret"]
        client = world.client(self.tenant)
        for _ in range(VICTIMS):
            answer = client.call("POST", "/v1/sessions", {"model": {"id": "m", "revision": "1"}})
            world.ledger.blame(answer.status == 201, f"session of {self.tenant}: {answer}")

    def ask(self, world):
        answer = world.client("operator").call("DELETE", f"/v1/tenants/{self.tenant}?now=true")
        world.ledger.blame(answer.status == 202, f"deletion of {self.tenant}: {answer}")

    def settle(self, world):
        client = world.client("operator")
        wait_until(lambda: client.call("GET", f"/v1/tenants/{self.tenant}").json["state"] == "erased", 30,
                   "the end of a tenant")

    def check(self, world):
        found = world.server.sql("SELECT e.sessions, e.state FROM kvrun.erasure e JOIN kvrun.tenant t ON t.id = e.tenant_id"
                                 f" WHERE e.scope = 'tenant' AND t.name = '{self.name}'")
        world.ledger.blame(found == f"{VICTIMS}|certified", f"erasures of {self.tenant}: {found!r}")


WAYS = {"label": ByLabel, "lifetime": ByLifetime, "tenant": ByTenant}


def many_on_the_path(world, number, point):
    fill(world)
    case = WAYS[MANY_POINTS[point]](world, number)
    world.kill()
    killed_at(world, point + "=kill@1", case.ask)
    world.start()
    case.settle(world)
    world.check()
    case.check(world)


def first_start(tools, cluster, number, point):
    world = World(tools, cluster, f"first{number}", point + "=kill@1")
    try:
        on_the_path(world)
        client = world.client("admin")
        workload.ask_erasure(world, client, world.ledger.in_state("live")[0], 10)
        world.check()
        world.end()
    finally:
        world.remove()
    return world


def sample(rng, what, all_of_it):
    all_of_it = list(all_of_it)
    return all_of_it if long_run() else rng.sample(all_of_it, SAMPLE[what])


class Points:
    def __init__(self, options):
        self.tools = Tools(options.kvrun, options.verify, options.attack)
        self.seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
        self.failures, self.sum = 0, Sum()

    def report(self, what, begun, world):
        violations = world.ledger.violations
        print(f"{what}: {'FAILED' if violations else 'good'} [{time.monotonic() - begun:.1f} s]", flush=True)
        print_violations(world)
        if violations:
            print(world.server.log_tail())
        self.failures += bool(violations)
        self.sum.runs += 1
        self.sum.kinds.update(world.ledger.kinds)
        world.ledger.violations = []
        world.ledger.kinds.clear()

    def one(self, world, what, run, *arguments):
        """False: nothing is left to go on with."""
        begun = time.monotonic()
        try:
            run(world, *arguments)
        except Exception:
            world.ledger.violate(traceback.format_exc())
        self.report(what, begun, world)
        return world.server.alive()

    def path(self, rng):
        world = World(self.tools)
        try:
            singles = [(point,) for point in sample(rng, "erase", ERASE_POINTS)]
            for points in singles + sample(rng, "recovery", IN_RECOVERY):
                self.sum.kills += len(points)
                if not self.one(world, ", then ".join(points), on_the_path, *points):
                    return
            for point in sample(rng, "upgrade", UPGRADE_POINTS):
                self.sum.kills += 1
                if not self.one(world, point, after_the_certificate, point):
                    return
            for point in sample(rng, "tenant", TENANT_POINTS):
                self.sum.kills += 1
                if not self.one(world, f"{point}, all of a tenant", all_on_the_path, point):
                    return
            for number, point in enumerate(sample(rng, "many", MANY_POINTS)):
                self.sum.kills += 1
                if not self.one(world, point, many_on_the_path, number, point):
                    return
            world.end()
            self.report("an orderly end", time.monotonic(), world)
        finally:
            world.remove()

    def first(self, rng):
        cluster = Cluster()
        try:
            for number, point in enumerate(sample(rng, "first", FIRST_START)):
                self.sum.kills += 1
                begun = time.monotonic()
                try:
                    self.report(f"first start, {point}", begun, first_start(self.tools, cluster, number, point))
                except Exception:
                    print(f"first start, {point}: FAILED\n{traceback.format_exc()}", flush=True)
                    self.failures += 1
                    self.sum.kinds[OTHER] += 1
        finally:
            cluster.remove()

    def run(self):
        print(f"seed {self.seed}, {'all points' if long_run() else 'a sample'}", flush=True)
        rng = random.Random(self.seed)
        self.path(rng)
        self.first(rng)
        print(self.sum)
        return self.failures == 0


def main():
    options = arguments()
    if options.no_faults:
        print("the server has no fault points", file=sys.stderr)
        return SKIP
    if programs_missing():
        return SKIP
    return 0 if Points(options).run() else 1


if __name__ == "__main__":
    sys.exit(main())
