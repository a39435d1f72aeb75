"""Behind PgBouncer in transaction mode, where no session is ours and no prepared statement stays: everything works as
it does without, and changes are seen by the lease's renewal."""
import sys

import postgres
import rig
import transfer_test


class Pooled:
    """Mixed in before a suite: its server's database is behind a pooler."""
    @classmethod
    def setUpClass(cls):
        cls.postgres = postgres.Postgres()
        cls.pooler = postgres.Pooler(cls.postgres)
        cls.server_options = (f"--db.url={cls.pooler.url}", "--instance.lease=3s")
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.pooler.remove()
        cls.postgres.remove()


class Transfers(Pooled, transfer_test.Transfers):
    """The whole suite."""


class Pooler(Pooled, rig.Suite):
    def logged(self, event):
        return [line for line in self.server.log if f'"{event}"' in line]

    def test_the_log_says_what_was_found(self):
        self.assertTrue(self.logged("pooler_found"))
        rig.wait_for("a word about listening", lambda: self.logged("listening-is-impossible"))
        self.assertFalse(self.logged("prepared_statements_are_lost"), "that would have been an error of a request first")

    def test_nothing_of_ours_stays_in_the_session(self):
        """A server that another client gets next has that client's settings, not this program's."""
        self.server.tenant("first")
        own = postgres.Postgres.sql
        path = own(self.through_the_pooler(), "SHOW search_path")
        self.assertEqual(path, '"$user", public')
        self.assertEqual(own(self.through_the_pooler(), "SHOW statement_timeout"), "0")
        self.assertEqual(own(self.through_the_pooler(), "SELECT count(*) FROM pg_prepared_statements"), "0")

    def through_the_pooler(self):
        class At:
            bin, url = self.postgres.bin, self.pooler.url
        return At()

    def test_a_change_is_seen_without_a_listener(self):
        """The renewal compares: a key that somebody revoked behind this instance's back is refused soon."""
        tenant = self.server.tenant("second")
        token = self.server.key(tenant, "tenant_admin")
        self.assertEqual(self.server.call("GET", f"/v1/tenants/{tenant}", token).status, 200)
        self.postgres.sql(f"UPDATE kvrun.api_key SET revoked_at = now() WHERE kid = '{token.split('_')[2]}';"
                          " UPDATE kvrun.change_head SET seq = seq + 1")
        rig.wait_for("a refusal", lambda: self.server.call("GET", f"/v1/tenants/{tenant}", token).status == 401)

    def test_a_pooler_that_drops_everybody_is_got_over(self):
        self.postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                          " WHERE usename = 'kvrun' AND pid <> pg_backend_pid()")
        self.assertTrue(self.server.tenant("after"))


if __name__ == "__main__":
    if not postgres.pgbouncer():
        print("PgBouncer is not installed", file=sys.stderr)
        sys.exit(rig.SKIP)
    rig.main(__name__)
