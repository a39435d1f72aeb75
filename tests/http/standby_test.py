"""An erasure and the standbys of its database: the old root is destroyed when they have the re-key on their disks, or were waited
for long enough. The standby is a real one: a base backup, streaming replication, a receiver that hangs."""
import glob
import os
import shutil
import signal
import subprocess
import time
import unittest

import postgres
import rig

WAIT_SECONDS = 60  # erase.standby_wait of the server that is seen waiting


class Standby(postgres.Postgres):
    """Of a primary; made from a base backup."""

    def __init__(self, primary):
        self.primary = primary
        super().__init__()

    def start(self):
        if os.path.exists(self.data) and not os.path.exists(os.path.join(self.data, "standby.signal")):
            shutil.rmtree(self.data)
            subprocess.run([f"{self.bin}/pg_basebackup", "-d", self.primary.url, "-D", self.data, "-R", "-X", "stream",
                            "--checkpoint=fast", "--no-sync"], check=True, cwd=self.folder, capture_output=True, **postgres.user())
        super().start()

    def receiver(self):
        """The process that writes down what the primary sends."""
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                pid = int(path.split("/")[2])
                with open(path, "rb") as file:
                    title = file.read()
                with open(f"/proc/{pid}/stat") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if b"walreceiver" in title and parent == self.process.pid:
                return pid
        return None


@unittest.skipUnless(postgres.programs(), "PostgreSQL is not installed")
class Erasures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.primary = postgres.Postgres()
        cls.addClassCleanup(cls.primary.remove)
        cls.standby = Standby(cls.primary)
        cls.addClassCleanup(cls.standby.remove)
        rig.wait_for("the standby", lambda: cls.streaming() == "1")

    @classmethod
    def streaming(cls):
        return cls.primary.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")

    def serve(self, wait, user="kvrun"):
        """On a database of its own."""
        self.name = self.id().rpartition(".")[2][:60]
        self.primary.sql(f"CREATE DATABASE {self.name} OWNER {user}")
        url = f"host=127.0.0.1 port={self.primary.port} user={user} dbname={self.name}"
        self.server = rig.Server(f"--db.url={url}", f"--erase.standby_wait={wait}s")
        self.addCleanup(self.server.stop)
        self.tenant = self.server.tenant("acme")
        self.admin = self.server.key(self.tenant, "tenant_admin")

    def ask(self, wait):
        session = self.server.patient("POST", "/v1/sessions", self.admin, {"model": {"id": "m", "revision": "r"}})
        self.assertEqual(session.status, 201, session)
        return self.server.call("POST", "/v1/erasures", self.admin, {"scope": {"session_id": session.json()["id"]}},
                                {"Prefer": f"wait={wait}"} if wait else {})

    def state(self, erasure):
        return self.server.call("GET", f"/v1/erasures/{erasure}", self.admin).json()["state"]

    def late(self):
        text = self.server.call("GET", "/metrics", admin=True).body.decode()
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("kvrun_erasure_standby_late_total"))

    def said(self, event):
        return [line for line in list(self.server.log) if f'"event":"{event}"' in line]

    def hang(self):
        pid = self.standby.receiver()
        self.assertIsNotNone(pid)
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(lambda: os.kill(pid, signal.SIGCONT))
        return pid

    def flushed(self):
        """Whether the standby has flushed what the primary has."""
        return self.primary.sql("SELECT coalesce(bool_and(flush_lsn >= pg_current_wal_flush_lsn()), true) FROM pg_stat_replication")

    def test_one_that_follows_is_no_delay_and_has_the_root_before_the_old_one_goes(self):
        self.serve(WAIT_SECONDS)
        answer = self.ask(30)
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)
        self.assertEqual((self.late(), self.said("standbys-behind")), (0, []))
        rig.wait_for("the standby", lambda: self.flushed() == "t")
        query = "SELECT encode(root_id, 'hex') FROM kvrun.kroot"
        rig.wait_for("the root on the standby",
                     lambda: self.standby.sql(query, self.name) == self.primary.sql(query, self.name))

    def test_one_that_hangs_is_waited_for_before_anything_is_destroyed(self):
        self.serve(WAIT_SECONDS)
        pid = self.hang()
        erasure = self.ask(0).json()["id"]
        rig.wait_for("the re-key", lambda: self.state(erasure) == "rekeyed")
        time.sleep(1)
        self.assertEqual(self.state(erasure), "rekeyed")
        os.kill(pid, signal.SIGCONT)
        rig.wait_for("the certificate", lambda: self.state(erasure) == "certified", WAIT_SECONDS // 2)
        self.assertEqual((self.late(), self.said("standbys-behind")), (0, []))

    def test_one_that_hangs_for_too_long_is_an_alarm_and_the_erasure_goes_on(self):
        self.serve(1)
        self.hang()
        begun = time.monotonic()
        answer = self.ask(60)
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)
        self.assertGreaterEqual(time.monotonic() - begun, 1)
        self.assertEqual(self.late(), 1)
        self.assertEqual(len(self.said("standbys-behind")), 1, list(self.server.log)[-20:])

    def test_nobody_is_waited_for_when_the_wait_is_nothing(self):
        self.serve(0)
        self.hang()
        answer = self.ask(60)
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)
        self.assertEqual((self.late(), self.said("standbys-behind")), (0, []))

    def test_a_receiver_that_nobody_can_promote_is_not_waited_for(self):
        folder = os.path.join(self.standby.folder, "received")
        os.mkdir(folder)
        if postgres.user():
            os.chown(folder, postgres.user()["user"], postgres.user()["group"])
        receiver = subprocess.Popen([f"{self.primary.bin}/pg_receivewal", "-d", self.primary.url, "-D", folder],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **postgres.user())
        try:
            rig.wait_for("the receiver", lambda: self.streaming() == "2")
            self.serve(WAIT_SECONDS)
            answer = self.ask(WAIT_SECONDS // 2)
            self.assertEqual((answer.status, answer.json()["state"], self.late()), (200, "certified", 0), answer)
        finally:
            receiver.terminate()
            receiver.wait(20)

    def test_a_user_who_may_not_see_standbys_is_told_which_right_it_lacks(self):
        self.primary.sql("CREATE ROLE plain LOGIN")
        self.serve(WAIT_SECONDS, "plain")
        answer = self.ask(WAIT_SECONDS // 2)
        self.assertEqual((answer.status, answer.json()["state"]), (200, "certified"), answer)
        self.assertEqual(self.late(), 1)
        self.assertIn("pg_monitor", "".join(self.said("standbys-unseen")))


if __name__ == "__main__":
    rig.main(__name__, needs_server=False)
