"""Requests without a valid key: bounded by address, at the expense of nobody who has one."""
import pathlib
import time

import rig
from exposition import Exposition


class Strangers(rig.Suite):
    """The bucket fills at two a second, so what is tested at its end is repeated until it was quicker than that."""

    server_options = ("--rate.unauthenticated=2", "--rate.default=0")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("behind-one-address")  # from here on the operator's key is known
        cls.admin, cls.unseen = (cls.server.key(cls.tenant, "tenant_admin") for _ in range(2))
        cls.session = cls.server.session(cls.admin)

    def drain(self, path="/v1/tiers", method="GET", token=None):
        """Asks without a valid key until one is refused; how often it was 401 before."""
        for tries in range(1000):
            answer = self.server.call(method, path, token, {} if method == "POST" else None)
            if answer.status == 429:
                return tries, answer
            self.assertEqual(answer.status, 401, answer)
        self.fail("a thousand requests without a key were heard")

    def count(self, reason):
        answer = self.server.call("GET", "/metrics", admin=True)
        return Exposition(answer.body.decode()).value(f'kvrun_http_rejects_total{{reason="{reason}"}}')

    def test_the_one_past_the_limit_is_told_when_to_come_back(self):
        def fresh():
            time.sleep(1.1)  # a full bucket
            begun = time.monotonic()
            heard, refused = self.drain()
            return (heard, refused) if time.monotonic() - begun < 0.4 else None

        before = self.count("auth_rate")
        heard, refused = rig.wait_for("a burst that is quicker than the bucket", fresh, 60)
        self.assertEqual(heard, 2)
        self.assertEqual((refused.code, refused.headers["retry-after"]), ("rate_limited", "1"))
        self.assertNotIn("www-authenticate", refused.headers)
        self.assertGreater(self.count("auth_rate"), before)

    def test_whoever_has_a_key_goes_on_and_erases(self):
        time.sleep(1.1)  # another test may have emptied what erases
        self.drain()
        # Nobody lets the bucket fill meanwhile, so each of these comes to an empty one.
        self.drain(token=self.server.operator[:-1] + "x")
        self.assertEqual(self.server.call("GET", "/v1/sessions", self.admin).status, 200, "known to this instance")
        self.drain()
        erased = self.server.call("POST", "/v1/erasures", self.unseen,
                                  {"scope": {"session_id": self.session}})
        self.assertEqual(erased.status, 202, "never seen before, but what erases has a bucket of its own")
        fresh = self.server.key(self.tenant, "tenant_admin")
        self.drain()
        rig.wait_for("the bucket to fill", lambda: self.server.call("GET", "/v1/sessions", fresh).status == 200)
        self.drain()
        self.assertEqual(self.server.call("GET", "/v1/sessions", fresh).status, 200, "and now it is known")

    def test_public_routes_are_not_counted(self):
        self.drain()
        for path in ("/livez", "/version", "/problems"):
            self.assertEqual(self.server.call("GET", path).status, 200, path)

    def test_what_erases_has_a_bucket_of_its_own_which_is_bounded_too(self):
        _, refused = self.drain("/v1/erasures", "POST")
        self.assertEqual(refused.code, "rate_limited")
        rig.wait_for("an answer 401 elsewhere", lambda: self.server.call("GET", "/v1/tiers").status == 401)

    def test_on_the_socket_nobody_is_a_stranger(self):
        self.drain()
        path = pathlib.Path(self.server.state, "engine.sock")
        for _ in range(20):
            self.assertEqual(self.server.call("GET", "/v1/tiers", unix=str(path)).status, 401)


if __name__ == "__main__":
    rig.main(__name__)
