"""A pool whose pages no tier could hold is refused when it is registered, not at each of its transfers."""
import engine
import rig


class BlockSize(rig.Suite):
    server_options = ("--tiers.dram.bytes=8MiB", "--tiers.nvme.bytes=0")

    def test_the_largest_block_is_named_and_holds(self):
        token = self.server.key(self.server.tenant("sizes"), "engine")
        session = self.server.session(token)
        probe = engine.Engine(self.server, token, name="probe")
        largest = probe.register("probe", rig.os.getpid(), 30).json()["limits"]["block_bytes"]
        self.assertLess(largest, 2 << 20, "a quarter of dram, less the header and the tags")
        fits = engine.Engine(self.server, token, slots=2, run=largest // 2, name="fits").open_pool()
        data = fits.fill(0, "page")
        self.assertEqual(fits.offload(session, ["block"], [0]).json()["results"], ["stored"])
        self.assertEqual(fits.restore(session, ["block"], [1]).json()["results"], ["restored"])
        self.assertEqual(fits.page(1), data)
        larger = engine.Engine(self.server, token, slots=2, run=largest // 2 + 1, name="larger")
        answer = larger.register_pool()
        self.assertEqual((answer.status, answer.code), (422, "geometry_mismatch"), answer)
        self.assertIn("tiers.dram.bytes", answer.json()["detail"])


if __name__ == "__main__":
    rig.main(__name__)
