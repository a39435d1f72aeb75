"""Keys, tokens, prompts, the bytes of blocks and what requests say, in everything that leaves the server or stays behind it:
log, metrics, error answers, the database as a dump, its files and its log as bytes, and what a core file of the live server
would have. None is there; and each kind, planted in each place, is found by the same search.

Memory that was freed is a case of its own: the HTTP library's has requests in it, with their keys for the API, until it is used
again. Keys of the tree, prompts and blocks are not even there."""
import base64
import glob
import os
import pathlib
import subprocess

import drill_memory
import memory_test  # of this folder; it puts tests/http on the path, which has one of that name, too
import rig
import traffic
from engine import Engine

PIECE = memory_test.PIECE
SAID = {what: f"canary {what} {os.urandom(20).hex()}" for what in ("external", "reason", "other")}
PROMPT = f"canary prompt {os.urandom(20).hex()}"


def spellings(secret):
    """Each way to write it: as it is, in hexadecimal of both kinds, in base64 at its three offsets."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for skip in range(3):
        yield base64.b64encode(secret[skip:])
        yield base64.urlsafe_b64encode(secret[skip:])


class Wiped:
    """Freed memory is wiped: by the server, or by the sanitizer whose allocator it has."""

    faults = "crypto/secretmem=fail"
    freed = set()
    sanitizer = "max_free_fill_size=1000000000:free_fill_byte=85"

    @classmethod
    def more_environment(cls):
        return {"ASAN_OPTIONS": ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), cls.sanitizer)))}


class Unwiped:
    """Control: when it is not, what is looked for is found there."""

    faults = Wiped.faults + ",server/no-wipe=fail"
    freed = {"token", "said"}
    sanitizer = ""


class Canaries(Wiped, memory_test.Base):
    server_options = ("--log.level=debug", "--rate.default=0", "--http.header_timeout=2s")

    # --- what is looked for

    def needles(self):
        found = memory_test.Needles()

        def add(kind, secret):
            """Pieces everywhere: of memory that was freed the allocator writes over the first bytes."""
            for spelling in spellings(secret):
                for at in range(0, len(spelling) - PIECE + 1, PIECE // 2):
                    found[spelling[at:at + PIECE]] = kind

        for token in self.tokens:
            add("token", token.split("_")[3].encode())  # what is behind the key's public id
        for text in SAID.values():
            add("said", text.encode())
        add("prompt", PROMPT.encode())
        add("block", self.mark)
        for _, _, key in self.told.lines():
            add("key", bytes.fromhex(key))
        return found

    # --- where

    def answers(self):
        """Errors of all kinds to requests that carry secrets everywhere."""
        body = {"external_id": SAID["external"], "reason": SAID["reason"], "unknown": SAID["other"]}
        said = []
        for token in [*self.tokens, self.tokens[0][:-4] + "aaaa"]:
            for method, path in (("POST", "/v1/sessions"), ("POST", "/v1/erasures"), ("POST", "/v1/offloads"), ("POST", "/v1/tenants"),
                                 ("GET", "/v1/sessions/ses_0"), ("GET", "/v1/nothing"), ("PUT", "/v1/tiers"), ("POST", "/v1/engines")):
                answer = self.server.call(method, path, token, body if method == "POST" else None,
                                          {"X-Api-Key": token, "Cookie": SAID["other"]}, check=False)
                self.assertGreaterEqual(answer.status, 400, answer)
                said.append(answer.body)
        return b"\n".join(said)

    def database_files(self):
        """All of the cluster, its log too, while it runs; a checkpoint first, so that nothing is in its memory alone."""
        self.server.database("checkpoint")
        where = self.server.cluster_folder
        return b"".join(pathlib.Path(path).read_bytes() for path in sorted(glob.glob(where + "/**", recursive=True))
                        if os.path.isfile(path) and "/postmaster" not in path)

    def dump(self):
        program = rig.postgres_program("pg_dump")
        if program is None:
            self.skipTest("pg_dump is not installed")
        where = pathlib.Path(self.server.state, "postgres.socket").read_text().strip()
        return subprocess.run([program, f"host={where} port=5432 user=kvrun dbname=postgres"], check=True, capture_output=True).stdout

    def core(self):
        """What a core file would have: every page that is there, but for those that are to be left out."""
        drill_memory.image(self.pid(), *(os.path.join(self.place, name) for name in ("whole", "keys", "core")))
        return pathlib.Path(self.place, "core").read_bytes()

    def places(self):
        core = self.core()  # first: the engine that has what is planted ends by itself
        metrics = self.server.call("GET", "/metrics", self.server.operator, admin=True).body
        return {"log": "".join(self.server.log).encode(), "metrics": metrics, "answers": self.answers(), "dump": self.dump(),
                "files": self.database_files(), "core": core}

    def registers(self, needles):
        """The kinds that are in a register of a thread; a core file has those, too."""
        hits, summary = memory_test.scan(self.pid(), needles)
        self.assertGreater(summary["threads"], 4)
        return {kind for kind, where in hits.items() if any(place.startswith("registers") for place in where)}

    def look(self, data, needles):
        """The kinds that are in the bytes, and how often."""
        path = os.path.join(self.place, "bytes")
        pathlib.Path(path).write_bytes(data)
        hits, summary = memory_test.scan(path, needles)
        self.assertEqual(summary["read"], len(data))
        return {kind: len(where) for kind, where in hits.items()}

    # --- the tests

    def use(self):
        """Everything that has secrets in it, with what is to be found of it in `tokens` and `mark`."""
        self.tokens = [self.server.operator, self.admin, self.token]
        page = PROMPT.encode().ljust(PIECE * 4)
        kept, self.mark = self.used_session(external_id=SAID["external"])
        self.engine.put(1, (page * (2 * self.engine.run // len(page) + 1))[:2 * self.engine.run])
        answer = self.engine.offload(kept, ["text"], [1], wait="durable")
        self.assertEqual(answer.json()["results"], ["stored"], answer)
        erased, _ = self.used_session(external_id=SAID["external"] + " 2")
        answer = self.server.call("POST", "/v1/erasures", self.admin, {"scope": {"session_id": erased}, "reason": SAID["reason"]},
                                  {"Prefer": "wait=60"})
        self.assertEqual(answer.json()["state"], "certified", answer)
        self.clear_pool()
        kept = traffic.use(self.server, self.tokens, list(SAID.values()))
        self.addCleanup(lambda: [connection.close() for connection in kept])

    def test_none_is_anywhere_and_all_that_are_planted_are_found(self):
        self.use()
        needles = self.needles()
        self.assertEqual(set(needles.values()), {"token", "said", "prompt", "block", "key"})
        places = self.places()
        found = {name: self.look(data, needles) for name, data in places.items()}
        registers = self.registers(needles)
        sizes = ", ".join(f"{name} {len(data)}" for name, data in places.items())
        print(f"{len(needles)} needles in {sizes} bytes: {found}; registers: {registers}", flush=True)
        self.assertEqual(set(found.pop("core")), self.freed)
        self.assertLessEqual(registers, self.freed)
        self.assertEqual(found, {name: {} for name in found})
        # The keys of sessions that live are there, where no core file takes them from: the search sees what is in memory.
        self.assertIn("key", self.look(pathlib.Path(self.place, "keys").read_bytes(), needles))
        self.plant({kind: next(piece for piece, name in needles.items() if name == kind) for kind in set(needles.values())})

    def plant(self, planted):
        """One of each kind in each place, for real wherever the server or its database can be made to say it; else in a copy of
        what was said."""
        needles, answers, planted_there = memory_test.Needles(), b"", []
        for number, (kind, needle) in enumerate(planted.items()):
            word = needle.hex()  # as text
            needles.update({needle: kind, word[:PIECE].encode(): kind})
            self.server.call("GET", "/v1/tiers", self.server.operator, headers={"X-Request-Id": word})
            rig.wait_for("the line", lambda word=word: any(word in line for line in list(self.server.log)))
            answers += self.server.call("GET", "/v1/nothing/" + word, self.server.operator, check=False).body
            self.server.database(f"create table if not exists planted (a bytea); insert into planted values ('\\x{word}')")
            planted_there.append((number * PIECE, needle))
        engine = Engine(self.server, self.token, slots=1, run=65536).open_pool()
        for at, needle in planted_there:
            engine.memory.write(at, needle)  # which the server maps
        places = self.places()
        places["answers"] = answers
        places["metrics"] += "".join(f'kvrun_x{{a="{needle.hex()}"}} 1\n' for needle in planted.values()).encode()
        found = {name: set(self.look(data, needles)) for name, data in places.items()}
        self.assertEqual(found, {name: set(planted) for name in places})
        self.server.database("drop table planted")
        self.assertEqual(set(self.look(self.database_files(), needles)), set(planted), "the log has what was dropped")


class Control(Unwiped, Canaries):
    pass


if __name__ == "__main__":
    memory_test.main(__name__)
