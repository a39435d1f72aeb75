"""Takes the Python client through api/clients/scenario.json: scenario_driver.py KVRUN_PY SOCKET FD_SOCKET TOKEN_FILE SCENARIO.

A line of JSON for each step: what was seen. Steps that are somebody else's are named by {"ask": …}, and go on with a line
from standard input. scenario_driver.c does the same.
"""
import importlib.util
import json
import mmap
import sys
import time


def load(path):
    spec = importlib.util.spec_from_file_location("kvrun", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kvrun"] = module
    spec.loader.exec_module(module)
    return module


kvrun = load(sys.argv[1])
MODEL = kvrun.Model("m", "r")


def hash_of(text):
    return bytes((ord(text[i % len(text)]) + 3 * i) & 255 for i in range(32))


def page_of(text, size):
    return bytes((ord(text[0]) * 131 + 7 * i + (i >> 8)) & 255 for i in range(size))


class Memory:
    def __init__(self, step):
        self.slots, self.block_bytes = step["slots"], step["block_bytes"]
        self.regions = step.get("regions") or [[0, self.block_bytes, self.block_bytes]]
        self.size = self.slots * self.block_bytes
        self.fd = kvrun.memory(self.size)
        self.map = mmap.mmap(self.fd, self.size)
        self.number = None

    def runs(self, slot):
        return [(offset + slot * stride, run) for offset, stride, run in self.regions]

    def write(self, slot, data):
        for at, run in self.runs(slot):
            self.map[at:at + run], data = data[:run], data[run:]

    def name(self, slot, texts):
        """Which text's page it is."""
        if slot >= self.slots:
            return "none"
        data = b"".join(self.map[at:at + run] for at, run in self.runs(slot))
        if not any(data):
            return "zero"
        return next((text for text in texts if data == page_of(text, self.block_bytes)), "other")


class Driver:
    def __init__(self, socket_path, fd_socket_path, token):
        self.client = kvrun.Client(socket_path, token, fd_socket_path=fd_socket_path, timeout_ms=5000,
                                   control_timeout_ms=60000, deadline_ms=20000)
        self.pools, self.sessions, self.hold = {}, {}, (0, 0)

    def session_of(self, step):
        return self.sessions.get(step["session"], "ses_00000000000000000000000000")

    def pool_of(self, step):
        return self.pools[step["pool"]].number if step["pool"] in self.pools else 99

    def do_register(self, step):
        self.client.register("scenario", "sim", "1", MODEL, lease_seconds=60)
        return {}

    def do_unregister(self, step):
        self.client.unregister()
        return {}

    def do_ready(self, step):
        while step.get("wait") and self.client.ready() is not None:
            time.sleep(0.02)  # the harness has an end for it
        return {"up": self.client.ready() is None}

    def do_pool(self, step):
        memory = Memory(step)
        regions = [kvrun.Region(*region) for region in step.get("regions", [])]
        memory.number = self.client.pool_register(kvrun.Pool(memory.fd, memory.size, "f16", "1", 16, memory.slots,
                                                             memory.block_bytes, regions))
        self.pools[step["as"]] = memory
        return {}

    def do_pool_remove(self, step):
        self.client.pool_remove(self.pools[step["pool"]].number)
        return {}

    def do_session(self, step):
        members = {name: step[name] for name in ("external_id", "labels", "ttl_seconds", "idle_ttl_seconds", "sharing_scope") if name in step}
        session = self.client.session_open(MODEL, **members)
        same = sorted(name for name, known in self.sessions.items() if known == session)
        self.sessions[step["as"]] = session
        return {"same_as": same}

    def do_fill(self, step):
        for slot, text in zip(step["slots"], step["texts"]):
            self.pools[step["pool"]].write(slot, page_of(text, self.pools[step["pool"]].block_bytes))
        return {}

    def do_zero(self, step):
        for slot in step["slots"]:
            self.pools[step["pool"]].write(slot, bytes(self.pools[step["pool"]].block_bytes))
        return {}

    def do_lookup(self, step):
        found = self.client.lookup(self.session_of(step), self.pool_of(step), [hash_of(text) for text in step["texts"]],
                                   shared_blocks=step.get("shared_blocks", 0))
        return {"prefix": found.prefix_blocks, "tiers": found.tiers, "cause": found.cause}

    def moved(self, step, moved):
        if moved.hold:
            self.hold = (self.pool_of(step), moved.hold)
        return {"results": moved.results, "tiers": moved.tiers, "cause": moved.cause, "held": moved.hold != 0,
                "bytes": moved.bytes}

    def transfer(self, step, call, **more):
        members = {name: step[name] for name in ("generations", "deadline_ms", "shared_blocks") if name in step}
        return call(self.session_of(step), self.pool_of(step), [hash_of(text) for text in step["texts"]], step["slots"],
                    **members, **more)

    def do_offload(self, step):
        moved = self.transfer(step, self.client.offload, durable=step.get("durable", False))
        return {**self.moved(step, moved), "stored": moved.stored, "present": moved.present}

    def do_restore(self, step):
        moved = self.transfer(step, self.client.restore)
        return {**self.moved(step, moved), "contiguous": moved.contiguous_blocks}

    def do_hold(self, step):
        while step["wait"] and not self.client.hold_is_over(*self.hold):
            time.sleep(0.02)
        return {"over": self.client.hold_is_over(*self.hold)}

    def do_erase(self, step):
        erasure = self.client.erase(self.session_of(step), basis=step.get("basis"), wait_seconds=step["wait_seconds"])
        return {"state": erasure.state}

    def do_stats(self, step):
        stats = vars(self.client.stats())
        return {name: value for name, value in stats.items() if not name.startswith("heartbeats")}

    def step(self, step):
        try:
            seen = {"error": "", **getattr(self, "do_" + step["do"])(step)}
        except kvrun.Error as error:
            seen = {"error": error.code}
        if step["do"] == "restore" and step["pool"] in self.pools:
            seen["pages"] = [self.pools[step["pool"]].name(slot, "abcdghls") for slot in step["slots"]]
        return seen


def main():
    with open(sys.argv[4], encoding="utf-8") as file:
        driver = Driver(*sys.argv[2:4], file.read().strip())
    with open(sys.argv[5], encoding="utf-8") as file:
        steps = json.load(file)["steps"]
    for step in steps:
        if step["do"] in ("server", "network"):
            print(json.dumps({"ask": step}), flush=True)
            sys.stdin.readline()
        else:
            print(json.dumps(driver.step(step)), flush=True)
    driver.client.close()


main()
