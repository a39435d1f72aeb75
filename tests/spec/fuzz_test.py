"""Runs the property fuzzer (fuzz.mjs) against a real server: 2 minutes, 30 with KV_LONG=1; KV_FUZZ_SECONDS says otherwise.

No answer is a server error or off the contract, the server lives, and its memory stays flat.
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "http"))
import rig  # noqa: E402
import yaml  # noqa: E402

TOOLS = pathlib.Path(os.environ.get("KV_SPEC_TOOLS", HERE.parents[1] / "build/spec"))
ROLES = ("tenant_admin", "engine", "auditor", "security_officer", "viewer")
# A stream has no end, and an archive is checked byte by byte elsewhere.
SKIP = []


def resident(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Memory(threading.Thread):
    """Reads how much memory is resident, once a minute."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.over, self.seen = pid, threading.Event(), []
        self.start()

    def run(self):
        while not self.over.wait(60):
            self.seen.append(resident(self.pid) >> 20)


class Fuzz(rig.Suite):
    server_options = ("--rate.default=1000000", "--rate.erase=1000000")

    def setup_file(self, folder):
        server = self.server
        home, other = server.tenant("home"), server.tenant("other")
        tokens = {"operator": server.operator, "none": ""}
        keep = [home, other]
        for role in ROLES:
            answer = server.patient("POST", f"/v1/tenants/{home}/api-keys", server.operator, {"name": role, "roles": [role]})
            assert answer.status == 201, answer
            tokens[role] = answer.json()["secret"]
            keep.append(answer.json()["id"])
        sessions = [server.session(tokens["tenant_admin"]) for _ in range(5)]
        keys = server.call("GET", "/v1/api-keys", server.operator)
        keep += [key["id"] for key in keys.json().get("data", [])] if keys.status == 200 else []
        setup = {"base": f"http://127.0.0.1:{server.port}", "tokens": tokens, "other": server.key(other, "tenant_admin"), "ids": sessions,
                 "keep": keep, "skip": SKIP}
        path = pathlib.Path(folder, "setup.json")
        path.write_text(json.dumps(setup))
        return path

    def test_no_answer_is_off_the_contract(self):
        seconds = int(os.environ.get("KV_FUZZ_SECONDS", 1800 if os.environ.get("KV_LONG") else 120))
        seed = int(os.environ.get("KV_FUZZ_SEED", random.randrange(1 << 31)))
        with tempfile.TemporaryDirectory() as folder:
            spec = pathlib.Path(folder, "spec.json")
            spec.write_text(json.dumps(yaml.safe_load((HERE.parents[1] / "api/openapi.yaml").read_text())))
            setup = self.setup_file(folder)
            warm = min(20, seconds // 3)
            first = self.fuzz(spec, setup, warm, seed)
            before = resident(self.server.process.pid)
            memory = Memory(self.server.process.pid)
            then = self.fuzz(spec, setup, seconds - warm, seed + 1)
            memory.over.set()
            after = resident(self.server.process.pid)
        requests = first["requests"] + then["requests"]
        print(f"seed {seed}: {requests} requests on {then['operations']} operations, {then['statuses']}, {then['modes']}; "
              f"resident {before >> 20} MiB after {warm} s, {after >> 20} MiB at the end", file=sys.stderr)
        never = sorted(name for name, count in then["succeeded"].items() if count + first["succeeded"].get(name, 0) == 0)
        print(f"resident, MiB by the minute: {memory.seen}\n{len(never)} operations never succeeded: {', '.join(never)}", file=sys.stderr)
        for failure in first["failures"] + then["failures"]:
            print(json.dumps(failure, indent=1), file=sys.stderr)
        self.assertEqual(len(first["failures"]) + len(then["failures"]), 0, f"seed {seed}")
        self.assertGreater(requests, 3 * then["operations"], "the control: there were requests")
        self.assertGreater(then["statuses"].get("200", 0) + then["statuses"].get("201", 0), requests // 20, "the control: some succeeded")
        # AddressSanitizer keeps up to 256 MiB of what was freed.
        kept = 256 << 20 if "address" in os.environ.get("KV_SANITIZER", "") else 0
        self.assertLess(after, before + (96 << 20) + kept, "resident memory")

    def fuzz(self, spec, setup, seconds, seed):
        done = subprocess.run(["node", HERE / "fuzz.mjs", spec, setup, str(seconds), str(seed)], cwd=TOOLS, capture_output=True, text=True,
                              timeout=seconds + 120)
        assert done.stdout, done.stderr[-3000:]
        return json.loads(done.stdout)


if __name__ == "__main__":
    if not (TOOLS / "node_modules/fast-check").is_dir() or shutil.which("node") is None:
        print("the tools of tests/spec are not there: tests/spec/fetch.sh brings them", file=sys.stderr)
        sys.exit(77)
    rig.main(__name__)
