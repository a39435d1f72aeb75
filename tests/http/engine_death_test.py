"""An engine that dies in the middle: its lease ends, its pools are closed, its sessions are warm for the next one."""
import os
import signal
import subprocess
import sys
import time

import rig
from engine import Engine

LEASE = 2
# The engine as a process of its own: registers, opens a pool, stores a block, then waits to be killed.
CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import rig, engine
class Server:
    call, patient = rig.Server.call, rig.Server.patient
    port, admin_port, proxy_port = int(sys.argv[2]), 0, None
class Nothing:
    def check(self, *_): pass
rig.contract = Nothing()
e = engine.Engine(Server(), sys.argv[3], name="child", lease=%d).open_pool()
e.fill(0, "of the child")
answer = e.offload(sys.argv[4], ["of the child"], [0])
print(e.id, e.pool, answer.json()["results"][0], flush=True)
sys.stdin.read()
""" % LEASE


class EngineDeath(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        tenant = cls.server.tenant("death")
        cls.token = cls.server.key(tenant, "engine")
        cls.session = cls.server.session(cls.token)

    def child(self):
        process = subprocess.Popen([sys.executable, "-c", CHILD, os.path.dirname(os.path.abspath(__file__)),
                                    str(self.server.port), self.token, self.session],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        words = process.stdout.readline().split()
        self.assertEqual(len(words), 3, "the child did not get far")
        return process, *words

    def pools_mapped(self):
        """How many memfds the server has mapped: every pool is one."""
        with open(f"/proc/{self.server.process.pid}/maps", encoding="utf-8") as maps:
            return len({line.split()[4] for line in maps if "memfd:pool" in line})

    def test_pools_of_a_killed_engine_are_closed_within_its_lease_and_five_seconds(self):
        rig.wait_for("pools of other tests to go", lambda: self.pools_mapped() == 0)
        process, engine, pool, result = self.child()
        self.assertIn(result, ("stored", "present"))
        self.assertEqual(self.pools_mapped(), 1)
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        body = {"session_id": self.session, "pool_id": pool, "hashes": ["0" * 64]}
        rig.wait_for("the pool's end", lambda: self.server.call("POST", "/v1/lookups", self.token, body).status == 404,
                     LEASE + 5)
        rig.wait_for("the mapping's end", lambda: self.pools_mapped() == 0, LEASE + 5 - (time.monotonic() - killed))
        beat = self.server.call("POST", f"/v1/engines/{engine}:heartbeat", self.token, {"seq": 1})
        self.assertEqual((beat.status, beat.code), (410, "engine_unknown"))
        self.restored_by_the_next_one()

    def restored_by_the_next_one(self):
        other = Engine(self.server, self.token, name="next").open_pool()
        other.fill(0, "of the child")
        expected = other.page(0)
        answer = other.restore(self.session, ["of the child"], [3])
        self.assertEqual(answer.json()["results"], ["restored"])
        self.assertEqual(other.page(3), expected)

    def test_an_engine_that_stops_its_heartbeat_is_forgotten_and_one_that_goes_on_is_not(self):
        silent = Engine(self.server, self.token, name="silent", lease=2).open_pool()
        lively = Engine(self.server, self.token, name="lively", lease=2).open_pool()
        beat = f"/v1/engines/{lively.id}:heartbeat"
        gone = 0
        for number in range(100):
            answer = self.server.call("POST", beat, self.token, {"seq": number})
            self.assertEqual(answer.status, 200)
            gone = silent.lookup(self.session, ["x"]).status
            if gone != 200:
                break
            time.sleep(0.1)  # the pace of a heartbeat, not a wait for something
        self.assertIn(gone, (404, 410))
        self.assertEqual(lively.lookup(self.session, ["x"]).status, 200)


if __name__ == "__main__":
    rig.main(__name__)
