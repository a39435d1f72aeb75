"""A state folder, what was promised for it, and a server that is killed on it again and again."""
import os
import shutil
import tempfile

import engine
from checks import Checks
from ledger import Ledger
from server import START_SECONDS, Client, Server
from workload import Workload

# Small tiers, so that blocks are on the move all the time: dram holds 40 of the larger blocks, a round offers several
# hundred. A small journal, so that its files change.
OPTIONS = ["--tiers.dram.bytes=8MiB", "--tiers.nvme.bytes=160MiB", "--audit.journal_bytes=1MiB"]
POOLS = [("large", 192 * 1024, 96), ("small", 80 * 1024, 96)]
WORK_SECONDS = 2.5


class Tools:
    def __init__(self, kvrun, verify, attack):
        self.kvrun, self.verify, self.attack = kvrun, verify, attack


class World:
    def __init__(self, tools, cluster=None, name="w", first_fault=None):
        self.tools, self.cluster = tools, cluster
        self.folder = tempfile.mkdtemp(prefix="kvcrash.")
        os.chmod(self.folder, 0o711)  # the private database runs as another user
        self.pools = [engine.Pool(*pool) for pool in POOLS]
        self.ledger, self.heads, self.keys, self.clients = Ledger(), {}, {}, []
        self.anchor = os.path.join(self.folder, "anchor")  # which must take no kill for a database that was put back
        open(self.anchor, "x").close()
        self.server = Server(tools.kvrun, self.folder, OPTIONS + ["--anchor.file=" + self.anchor], cluster.database(name) if cluster else None)
        try:
            self.first_start(first_fault)
        except Exception:
            self.remove()
            raise

    def first_start(self, fault):
        if fault:
            self.server.spawn(fault)
            self.ledger.blame(self.server.wait_dead(START_SECONDS), f"{fault} did not come by in the first start")
            self.server.kill()
        self.server.start()
        self.make_keys()
        self.attach()

    def make_keys(self):
        self.keys["operator"] = self.server.operator_key()
        operator = self.client("operator")
        tenant = self.tenant = operator.call("POST", "/v1/tenants", {"name": "acme"}).json["id"]
        for name, role in (("engine", "engine"), ("admin", "tenant_admin")):
            answer = operator.call("POST", f"/v1/tenants/{tenant}/api-keys", {"name": name, "roles": [role]})
            self.keys[name] = answer.json["secret"]

    def client(self, role):
        client = Client(self.server.socket, self.keys[role])
        self.clients.append(client)
        return client

    def attach(self):
        engine.register(self.client("engine"), self.server.fd_socket, self.pools)

    def close_clients(self):
        for client in self.clients:
            client.close()
        self.clients = []

    def start(self, fault=None):
        self.server.start(fault)
        self.attach()

    def kill(self):
        self.server.kill()
        self.close_clients()

    # --- the steps of a round

    def work(self, seed, kill_after=None, erase_first=False, database=None):
        """Load until the server is dead: by its fault point, or by us after `kill_after` seconds. True: its own doing.
        The database stays, or ends "with" the server, or "before" it, so that the server sees it go and come back."""
        load = Workload(self, seed, erase_first)
        load.start()
        own = self.server.wait_dead(WORK_SECONDS if kill_after is None else kill_after)
        if database:
            self.cluster.crash()
        if database == "before":
            self.cluster.start()
            self.server.wait_dead(kill_after or 0.4)
        self.server.kill()
        load.join()
        self.close_clients()
        if database == "with":
            self.cluster.start()
        return own

    def die_in_recovery(self, after, fault=None):
        """Starts it and kills it on its way up, or shortly after."""
        self.server.spawn(fault)
        own = self.server.wait_dead(after)
        self.server.kill()
        return own

    def check(self):
        Checks(self).all()

    def end(self):
        """An orderly end, in which sanitizers find what leaked."""
        if self.server.alive():
            status = self.server.stop()
            self.ledger.blame(status == 0, f"the server ended with {status}:\n{self.server.log_tail()}")
        self.close_clients()

    def remove(self):
        if self.server.alive():
            self.server.kill()
        self.server.forget_sockets()
        shutil.rmtree(self.folder, ignore_errors=True)
