"""The whole way: tenant, key, session, engine, pool, blocks out and back, erasure, certificate."""
import json
import os
import pathlib
import subprocess

import rig
from engine import Engine, Memory, hand_over, hash_of, page_of

TEXTS = ["a", "b", "c"]


class Transfers(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("transfers")
        cls.admin = cls.server.key(cls.tenant, "tenant_admin")
        cls.token = cls.server.key(cls.tenant, "engine")
        cls.auditor = cls.server.key(cls.tenant, "auditor")
        cls.engine = Engine(cls.server, cls.token).open_pool().beat()

    def stored(self, texts=TEXTS, **members):
        """A session with blocks in it, and what they hold."""
        session = self.server.session(self.token)
        pages = [self.engine.fill(slot, session + text) for slot, text in enumerate(texts)]
        answer = self.engine.offload(session, texts, range(len(texts)), **members)
        self.assertEqual(answer.status, 200, answer)
        self.assertEqual(answer.json()["results"], ["stored"] * len(texts))
        return session, pages

    def restored(self, session, pages, texts=TEXTS):
        """Into other slots than they came from, whose pages held something else."""
        slots = [7 - slot for slot in range(len(texts))]
        for slot in slots:
            self.engine.fill(slot, "before")
        answer = self.engine.restore(session, texts, slots)
        self.assertEqual(answer.status, 200, answer)
        self.assertEqual(answer.json()["results"], ["restored"] * len(texts))
        self.assertEqual([self.engine.page(slot) for slot in slots], pages)
        return answer.json()

    def drain(self):
        answer = self.server.call("POST", "/v1/tiers/dram:drain", self.server.operator, headers={"Prefer": "wait=60"})
        self.assertEqual(answer.status, 200, answer)
        return answer.json()["response"]["blocks"]

    # --- blocks

    def test_blocks_come_back_bit_for_bit_from_memory(self):
        session, pages = self.stored()
        answer = self.restored(session, pages)
        self.assertEqual(answer["tiers"], ["dram"] * 3)
        self.assertEqual(answer["contiguous_blocks"], 3)
        self.assertEqual(answer["bytes"], sum(map(len, pages)))

    def test_a_record_names_the_versions_of_the_policies_that_decided(self):
        def versions(session):
            def entries():
                answer = self.server.call("GET", f"/v1/audit/entries?session_id={session}&limit=200", self.auditor)
                found = [json.loads(entry["entry"]) for entry in answer.json()["data"] if entry["op"].startswith("block.")]
                return len(found) == 2 and found
            return [entry["policy"] for entry in rig.wait_for("both entries", entries)]

        def now():
            platform = self.server.call("GET", "/v1/platform/policy", self.server.operator).json()["version"]
            tenant = self.server.call("GET", f"/v1/tenants/{self.tenant}/policy", self.admin).json()["version"]
            return {"platform": str(platform), "tenant": str(tenant)}

        for size in (60000000, 50000000):
            policy = {"tiers": {"dram": {}, "nvme": {}}, "max_block_bytes": size}
            put = self.server.call("PUT", f"/v1/tenants/{self.tenant}/policy", self.admin, policy)
            self.assertEqual(put.status, 200, put)
            session, pages = self.stored()
            self.restored(session, pages)
            self.assertEqual(versions(session), [now()] * 2)
            self.assertEqual(now()["tenant"], str(put.json()["version"]))

    def test_what_was_moved_is_known_by_hours_after_a_restart_too(self):
        def moved(window="1h"):
            answer = self.server.call("GET", f"/v1/tenants/{self.tenant}/usage?window={window}", self.admin)
            self.assertEqual(answer.status, 200, answer)
            return answer.json()["window"]

        before = moved()
        session, pages = self.stored()
        self.restored(session, pages)
        size = sum(map(len, pages))
        want = {"offloaded_blocks": 3, "offloaded_bytes": size, "restored_blocks": 3, "restored_bytes": size}

        def counted(window):
            now = moved(window)
            return all(now[name] >= before[name] + more for name, more in want.items()) and now

        now = rig.wait_for("the records to be counted", lambda: counted("90d"))
        self.assertLess(now["from"], now["until"])
        self.assertLessEqual(before["from"], now["from"], "counting began later than any window")
        for window in ("0h", "01h", "1", "h", "1m", "91d", "2161h", "-1h", "1hh", "99999h"):
            answer = self.server.call("GET", f"/v1/tenants/{self.tenant}/usage?window={window}", self.admin)
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), window)
        self.assertEqual(moved("2160h")["from"], now["from"])
        self.assertNotIn("window", self.server.call("GET", f"/v1/tenants/{self.tenant}/usage", self.admin).json())

    def test_a_durable_offload_is_on_nvme_when_it_answers(self):
        session, _ = self.stored(wait="durable")
        answer = self.engine.lookup(session, TEXTS + ["never"])
        self.assertEqual(answer.json(), {"prefix_blocks": 3, "tiers": ["dram+nvme"] * 3 + ["none"]})

    def test_blocks_come_back_bit_for_bit_from_nvme_after_a_drain(self):
        session, pages = self.stored()
        self.assertGreaterEqual(self.drain(), 3)
        self.assertEqual(self.engine.lookup(session, TEXTS).json()["tiers"], ["nvme"] * 3)
        self.assertEqual(self.restored(session, pages)["tiers"], ["nvme"] * 3)

    def test_the_same_block_again_is_present(self):
        session, _ = self.stored()
        answer = self.engine.offload(session, TEXTS, range(3)).json()
        self.assertEqual((answer["results"], answer["stored"], answer["present"]), (["present"] * 3, 0, 3))

    def test_a_page_of_a_missing_block_is_untouched(self):
        session, pages = self.stored(["a"])
        before = self.engine.fill(5, "mine")
        answer = self.engine.restore(session, ["never", "a"], [5, 6]).json()
        self.assertEqual(answer["results"], ["missing", "restored"])
        self.assertEqual(answer["contiguous_blocks"], 0)
        self.assertEqual(self.engine.page(5), before)
        self.assertEqual(self.engine.page(6), pages[0])

    def test_a_session_sees_no_other_sessions_blocks(self):
        self.stored()
        other = self.server.session(self.token)
        self.assertEqual(self.engine.lookup(other, TEXTS).json()["tiers"], ["none"] * 3)
        self.assertEqual(self.engine.restore(other, TEXTS, range(3)).json()["results"], ["missing"] * 3)

    def test_usage_counts_what_a_session_occupies(self):
        session, pages = self.stored(wait="durable")
        usage = self.server.call("GET", f"/v1/sessions/{session}", self.admin).json()["usage"]
        self.assertEqual((usage["blocks"], usage["dram_blocks"], usage["nvme_blocks"]), (3, 3, 3))
        self.assertEqual(usage["plaintext_bytes"], sum(map(len, pages)))
        self.assertGreater(usage["nvme_bytes"], usage["plaintext_bytes"])

    def test_the_api_on_tcp_and_on_the_socket_is_one(self):
        session, _ = self.stored()
        body = {"session_id": session, "pool_id": self.engine.pool, "hashes": [hash_of("a")]}
        tcp = self.server.call("POST", "/v1/lookups", self.token, body)
        unix = self.server.call("POST", "/v1/lookups", self.token, body, unix=self.engine.socket)
        self.assertEqual(tcp.body, unix.body)

    # --- what is refused

    def test_columns_of_different_lengths_are_refused(self):
        session, _ = self.stored()
        answer = self.engine.restore(session, TEXTS, [0, 1])
        self.assertEqual((answer.status, answer.pointer), (400, "/slots"))

    def test_one_page_for_two_blocks_is_refused_in_a_restore(self):
        session, pages = self.stored()
        answer = self.engine.restore(session, TEXTS, [4, 5, 4])
        self.assertEqual((answer.status, answer.pointer), (400, "/slots"))
        self.assertIn("slot 4", answer.json()["detail"])
        self.restored(session, pages)

    def test_a_slot_past_the_pool_is_refused(self):
        session, _ = self.stored()
        for route in (self.engine.restore, self.engine.offload):
            answer = route(session, ["a"], [8])
            self.assertEqual((answer.status, answer.pointer), (400, "/slots"))

    def test_the_most_blocks_of_a_call_and_one_more(self):
        session = self.server.session(self.token)
        texts = [f"block {i}" for i in range(4097)]
        self.assertEqual(self.engine.lookup(session, texts[:4096]).status, 200)
        answer = self.engine.lookup(session, texts)
        self.assertEqual((answer.status, answer.pointer), (400, "/hashes"))

    # --- pages with generations

    def counting(self):
        """An engine of its own that counts its pages' generations."""
        return Engine(self.server, self.token, name="counts").open_pool()

    def test_a_page_of_an_erased_session_is_not_sealed_until_its_generation_moves_on(self):
        engine = self.counting()
        old, new = self.server.session(self.token), self.server.session(self.token)
        engine.fill(0, "secret")
        engine.fill(1, "of the new one")
        self.assertEqual(engine.offload(old, ["a"], [0], generations=[7]).json()["results"], ["stored"])
        self.assertEqual(engine.offload(new, ["a"], [0], generations=[7]).json()["results"], ["stored"], "while it lives")
        self.assertEqual(engine.offload(old, ["b"], [0], generations=[7]).json()["results"], ["stored"])
        self.erased(old)
        for generations in ({"generations": [7, 1]}, {}):  # left out is no way around it
            answer = engine.offload(new, ["c", "d"], [0, 1], **generations).json()
            self.assertEqual(answer["results"], ["stale_page", "stored" if generations else "present"], generations)
            self.assertEqual((answer["stored"], answer["present"]), (1, 0) if generations else (0, 1))
        self.assertEqual(engine.lookup(new, ["c"]).json()["tiers"], ["none"])
        engine.fill(0, "computed anew")
        self.assertEqual(engine.offload(new, ["c"], [0], generations=[8]).json()["results"], ["stored"])

    def test_a_page_that_a_living_session_took_over_by_a_restore_is_its_own(self):
        engine = self.counting()
        old, new = self.server.session(self.token), self.server.session(self.token)
        engine.fill(0, "old")
        engine.fill(1, "new")
        self.assertEqual(engine.offload(old, ["a"], [0], generations=[1]).json()["results"], ["stored"])
        self.assertEqual(engine.offload(new, ["a"], [1], generations=[1]).json()["results"], ["stored"])
        self.erased(old)
        self.assertEqual(engine.restore(new, ["a"], [0], generations=[1]).json()["results"], ["restored"])
        self.assertEqual(engine.offload(new, ["b"], [0], generations=[1]).json()["results"], ["stored"])

    def test_a_generation_that_went_back_is_stale_both_ways(self):
        engine = self.counting()
        session = self.server.session(self.token)
        engine.fill(0, "x")
        self.assertEqual(engine.offload(session, ["a"], [0], generations=[5]).json()["results"], ["stored"])
        before = engine.fill(0, "of somebody else by now")
        answer = engine.restore(session, ["a", "a2"], [0, 1], generations=[4, 0]).json()
        self.assertEqual((answer["results"], answer["contiguous_blocks"]), (["stale_page", "missing"], 0))
        self.assertEqual(engine.page(0), before)
        answer = engine.offload(session, ["c"], [0], generations=[4]).json()
        self.assertEqual((answer["results"], answer["stored"]), (["stale_page"], 0))
        self.assertEqual(engine.restore(session, ["a"], [0], generations=[6]).json()["results"], ["restored"])

    def test_without_generations_nothing_is_refused(self):
        engine = self.counting()
        old, new = self.server.session(self.token), self.server.session(self.token)
        engine.fill(0, "x")
        self.assertEqual(engine.offload(old, ["a"], [0]).json()["results"], ["stored"])
        self.erased(old)
        self.assertEqual(engine.offload(new, ["a"], [0]).json()["results"], ["stored"])

    def test_generations_are_whole_numbers_as_many_as_hashes(self):
        engine = self.counting()
        session = self.server.session(self.token)
        engine.fill(0, "x")
        top = 2 ** 53 - 1
        for generations, pointer in (([1, 2], "/generations"), ([-1], "/generations/0"), ([top + 1], "/generations/0"),
                                     (["1"], "/generations/0"), ([], "/generations")):
            for route in (engine.offload, engine.restore):
                answer = route(session, ["a"], [0], generations=generations)
                self.assertEqual((answer.status, answer.pointer), (400, pointer), generations)
        self.assertEqual(engine.offload(session, ["a"], [0], generations=[top]).json()["results"], ["stored"])

    # --- pools

    def test_another_layout_is_a_miss(self):
        session, _ = self.stored()
        other = Engine(self.server, self.token, name="other layout")
        other.layout = other.regions(format="bf16")
        other.open_pool()
        self.assertEqual(other.lookup(session, TEXTS).json()["tiers"], ["none"] * 3)
        before = other.fill(0, "mine")
        self.assertEqual(other.restore(session, ["a"], [0]).json()["results"], ["missing"])
        self.assertEqual(other.page(0), before)
        same = Engine(self.server, self.token, name="same layout").open_pool()
        self.assertEqual(same.restore(session, ["a"], [0]).json()["results"], ["restored"])

    def test_an_opaque_pool_moves_blocks_too(self):
        engine = Engine(self.server, self.token, name="opaque")
        memory = Memory(4 * 8192)
        layout = {"kind": "opaque", "format": "paged", "engine_version": "1", "tokens_per_block": 16, "slots": 4,
                  "page_bytes": 8192}
        answer = engine.register_pool(memory, layout)
        self.assertEqual(answer.status, 201, answer)
        self.assertEqual(answer.json()["bytes_per_block"], 8192)
        engine.pool = answer.json()["id"]
        session = self.server.session(self.token)
        data = page_of("opaque", 8192)
        memory.write(8192, data)
        self.assertEqual(engine.offload(session, ["x"], [1]).json()["results"], ["stored"])
        self.assertEqual(engine.restore(session, ["x"], [3]).json()["results"], ["restored"])
        self.assertEqual(memory.read(3 * 8192, 8192), data)

    def refused(self, code, status=422, **how):
        answer = self.engine.register_pool(**how)
        self.assertEqual((answer.status, answer.code), (status, code), answer)
        return answer.json()["detail"]

    def test_memory_that_can_shrink_is_refused(self):
        self.refused("pool_not_sealed", memory=Memory(65536, allow_sealing=False))

    def test_memory_smaller_than_it_was_said_to_be_is_refused(self):
        self.refused("pool_truncated", memory=Memory(32768), size=65536)

    def test_arithmetic_that_is_wrong_is_refused_and_shown(self):
        detail = self.refused("geometry_mismatch", layout=self.engine.regions(bytes_per_block=8191))
        self.assertIn("8191", detail)
        self.refused("geometry_mismatch", layout=self.engine.regions(slots=9))
        overlap = self.engine.regions()
        overlap["regions"][1]["offset_bytes"] = 4096
        self.refused("geometry_mismatch", layout=overlap)

    def test_a_descriptor_token_works_once(self):
        token = hand_over(self.engine.fd_socket, self.engine.memory.fd)
        answer = self.engine.register_pool(token=token)
        self.assertEqual(answer.status, 201, answer)
        self.refused("invalid_request", 400, token=token)
        self.refused("invalid_request", 400, token="tok_" + "0" * 32)
        self.remove_pool(answer.json()["id"])

    def remove_pool(self, pool):
        self.assertEqual(self.server.call("DELETE", f"/v1/pools/{pool}", self.token).status, 204)
        self.assertEqual(self.server.call("DELETE", f"/v1/pools/{pool}", self.token).status, 404)

    def test_a_descriptor_of_another_process_is_refused(self):
        other = Engine(self.server, self.token, pid=os.getppid(), name="another process")
        answer = other.register_pool()
        self.assertEqual((answer.status, answer.code), (403, "peer_mismatch"))
        unregistered = self.server.call("DELETE", f"/v1/engines/{other.id}", self.token)
        self.assertEqual(unregistered.status, 204)

    def test_the_descriptor_socket_takes_one_descriptor_and_one_byte(self):
        path, fd = self.engine.fd_socket, self.engine.memory.fd
        for how in ({"byte": b"X"}, {"count": 0}, {"count": 2}, {"count": 4}, {"count": 50}):
            self.assertTrue(hand_over(path, fd, **how).startswith("error "), how)
        self.assertTrue(hand_over(path, fd).startswith("tok_"))

    def test_a_removed_pool_is_gone(self):
        engine = Engine(self.server, self.token, name="short").open_pool()
        session = self.server.session(self.token)
        self.remove_pool(engine.pool)
        self.assertEqual(engine.lookup(session, ["a"]).status, 404)

    def test_a_removed_engine_takes_its_pools_along(self):
        engine = Engine(self.server, self.token, name="removed").open_pool()
        self.assertEqual(self.server.call("DELETE", f"/v1/engines/{engine.id}", self.token).status, 204)
        session = self.server.session(self.token)
        self.assertEqual(engine.lookup(session, ["a"]).status, 404)
        answer = self.server.call("POST", f"/v1/engines/{engine.id}:heartbeat", self.token, {"seq": 1})
        self.assertEqual((answer.status, answer.code), (410, "engine_unknown"))

    def test_the_same_process_registering_again_is_the_same_engine(self):
        first = self.engine.register("again", os.getpid(), 5)
        second = self.engine.register("again", os.getpid(), 5)
        self.assertEqual((first.status, second.status), (201, 200))
        self.assertEqual(first.json()["id"], second.json()["id"])
        conflict = self.engine.register("again", os.getpid(), 5, kind="vllm")
        self.assertEqual((conflict.status, conflict.code), (409, "engine_conflict"))

    # --- erasure

    def erase(self, session, token=None, **how):
        body = {"scope": {"session_id": session}, "basis": "gdpr_art17", "reason": "ticket 4711"}
        return self.server.call("POST", "/v1/erasures", token or self.admin, body, {"Prefer": "wait=30"}, **how)

    def erased(self, session):
        answer = self.erase(session)
        self.assertEqual(answer.status, 200, answer)
        self.assertEqual(answer.json()["state"], "certified")
        return answer.json()

    def certificate(self, erasure, accept, token=None):
        answer = self.server.call("GET", erasure["links"]["certificate"], token or self.admin,
                                  headers={"Accept": accept})
        self.assertEqual(answer.status, 200, answer)
        return answer

    def test_an_erased_session_answers_410_with_its_certificate_everywhere(self):
        session, _ = self.stored(wait="durable")
        untouched, pages = self.stored()
        erasure = self.erased(session)
        before = self.engine.fill(7, "mine")
        answers = [self.server.call("GET", f"/v1/sessions/{session}", self.admin),
                   self.engine.offload(session, TEXTS, range(3)), self.engine.restore(session, TEXTS, [7, 6, 5]),
                   self.engine.lookup(session, TEXTS)]
        for answer in answers:
            self.assertEqual((answer.status, answer.code), (410, "session_erased"), answer)
            self.assertEqual(answer.json()["certificate"], erasure["links"]["certificate"])
        self.assertEqual(self.engine.page(7), before)
        self.restored(untouched, pages)

    def test_the_steps_of_an_erasure_are_in_order(self):
        session, _ = self.stored()
        erasure = self.erased(session)
        self.assertEqual([step["state"] for step in erasure["steps"]],
                         ["requested", "fenced", "staged", "rekeyed", "destroyed", "purged", "verified", "certified"])
        times = [step["at"] for step in erasure["steps"]]
        self.assertEqual(times, sorted(times))

    def test_an_erasure_is_answered_at_once_and_can_be_watched(self):
        session, _ = self.stored()
        answer = self.server.call("POST", "/v1/erasures", self.admin, {"scope": {"session_id": session}})
        self.assertIn(answer.status, (200, 202))
        where = answer.headers["location"]
        rig.wait_for("the certificate",
                     lambda: self.server.call("GET", where, self.admin).json()["state"] == "certified", 30)

    def test_the_certificate_comes_in_three_forms_of_one_content(self):
        session, _ = self.stored()
        erasure = self.erased(session)
        bundle = self.certificate(erasure, "text/plain")
        jws = self.certificate(erasure, "application/jose")
        payload = self.certificate(erasure, "application/json")
        self.assertEqual(payload.json()["certificate"]["sub"]["session"], session)
        self.assertEqual([answer.headers["content-type"].split(";")[0] for answer in (bundle, jws, payload)],
                         ["text/plain", "application/jose", "application/json"])
        self.assertIn(session, payload.body.decode())
        self.assertEqual(self.server.call("GET", erasure["links"]["certificate"], self.admin,
                                          headers={"Accept": "image/png"}).status, 406)
        self.assertEqual(self.certificate(erasure, "text/plain", self.auditor).body, bundle.body)

    def test_the_certificate_verifies_offline_and_a_changed_one_does_not(self):
        if not rig.options.kv_verify:
            self.skipTest("no kv-verify")
        session, _ = self.stored()
        bundle = self.certificate(self.erased(session), "text/plain").body
        folder = pathlib.Path(self.server.folder, "certificate")
        folder.mkdir()
        (folder / "jwks.json").write_bytes(self.server.call("GET", "/.well-known/kvrun/jwks.json").body)
        (folder / "log.vkey").write_bytes(self.server.call("GET", "/.well-known/kvrun/log.vkey").body)
        self.assertEqual(self.verify(folder, bundle), 0)
        position = len(bundle) // 3
        changed = bundle[:position] + bytes([bundle[position] ^ 1]) + bundle[position + 1:]
        self.assertNotEqual(self.verify(folder, changed), 0)

    def verify(self, folder, bundle):
        (folder / "certificate.txt").write_bytes(bundle)
        done = subprocess.run([rig.options.kv_verify, folder / "certificate.txt", "--keys", folder, "--json"],
                              capture_output=True, text=True, timeout=60, check=False)
        json.loads(done.stdout)
        return done.returncode

    def test_erasing_again_gives_the_same_certificate(self):
        session, _ = self.stored()
        first, second = self.erased(session), self.erased(session)
        self.assertEqual(first["id"], second["id"])
        for accept in ("text/plain", "application/jose", "application/json"):
            self.assertEqual(self.certificate(first, accept).body, self.certificate(second, accept).body)

    def test_an_engines_key_erases_only_what_it_created(self):
        session = self.server.session(self.admin)
        self.assertEqual(self.erase(session, self.token).status, 403)
        own = self.server.session(self.token)
        self.assertEqual(self.erase(own, self.token).status, 200)

    def test_a_heartbeat_tells_of_revocations_once(self):
        engine = Engine(self.server, self.token, name="told").open_pool()  # the suite's own sends heartbeats by itself
        engine.fill(0, "told")
        session = self.server.session(self.token)
        self.assertEqual(engine.offload(session, ["a"], [0]).json()["results"], ["stored"])
        path = f"/v1/engines/{engine.id}:heartbeat"
        self.server.call("POST", path, self.token, {"seq": 1})
        self.erased(session)
        told = self.server.call("POST", path, self.token, {"seq": 2}).json()["revocations"]
        self.assertEqual(told, [{"session_id": session}])
        self.assertEqual(self.server.call("POST", path, self.token, {"seq": 3}).json()["revocations"], [])

    def test_certificates_of_nothing_are_not_found(self):
        missing = "/v1/erasures/era_00000000000000000000000000"
        self.assertEqual(self.server.call("GET", missing, self.admin).status, 404)
        self.assertEqual(self.server.call("GET", missing + "/certificate", self.admin).status, 404)

    def test_a_new_key_is_shown_once_and_never_logged(self):
        body = {"name": "shown", "roles": ["engine"], "expires_in_seconds": 60}
        secret = self.server.call("POST", f"/v1/tenants/{self.tenant}/api-keys", self.admin, body).json()["secret"]
        log = "".join(self.server.log)
        self.assertNotIn(secret, log)
        self.assertNotIn(secret.split("_")[3], log)
        self.assertNotIn(self.server.operator, log)

    def test_a_key_ends_when_it_expires(self):
        body = {"name": "short", "roles": ["tenant_admin"], "expires_in_seconds": 1}
        secret = self.server.call("POST", f"/v1/tenants/{self.tenant}/api-keys", self.admin, body).json()["secret"]
        rig.wait_for("the key's end",
                     lambda: self.server.call("GET", f"/v1/tenants/{self.tenant}", secret).status == 401, 15)


if __name__ == "__main__":
    rig.main(__name__)
