"""What the deployment files say is what the binary knows: keys, ports, probes. deploy_test.py KVRUN"""
import json
import pathlib
import re
import subprocess
import sys

try:
    import yaml
except ImportError:
    print("PyYAML is not installed", file=sys.stderr)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def main():
    kvrun = sys.argv[1]
    docs = subprocess.run([kvrun, "config", "docs"], check=True, capture_output=True, text=True).stdout
    keys = set(re.findall(r"^\| `([a-z0-9_.]+)`", docs, re.M))
    assert len(keys) > 20, "the table of keys was not understood"
    variables = {"KVRUN_" + key.upper().replace(".", "_") for key in keys} | {"KVRUN_CONFIG"}
    variables |= {name + "_FILE" for name in variables}
    used = 0
    for path in [DOCKER / "compose.yaml", *sorted((DOCKER / "kubernetes").glob("*.yaml"))]:
        documents(path)
        text = path.read_text()
        for name in re.findall(r"\bKVRUN_[A-Z_]+\b", text):
            if name not in ("KVRUN_UID", "KVRUN_GID"):
                assert name in variables, f"{path.name}: {name} is no variable of kvrun"
                used += 1
    conf = documents(DOCKER / "kubernetes/config.yaml")[0]["data"]["kvrun.conf"]
    for line in conf.strip().splitlines():
        key = line.split("=")[0].strip()
        assert key in keys, f"config.yaml: {key} is no key of kvrun"
        used += 1
    routes = set(re.findall(r'\{"GET", "([^"]+)"', (ROOT / "server/http/router.c").read_text()))
    pod = documents(DOCKER / "kubernetes/daemonset.yaml")[0]["spec"]["template"]
    container = pod["spec"]["containers"][0]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in routes, probe
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name, key in (("api", "http.listen"), ("admin", "http.admin_listen")):
        assert f":{ports[name]}" in re.search(rf"^\| `{re.escape(key)}` .*$", docs, re.M).group(0), name
    grace = re.search(r"shutdown.grace = (\d+)s", conf), re.search(r"shutdown.delay = (\d+)s", conf)
    assert pod["spec"]["terminationGracePeriodSeconds"] > sum(int(found.group(1)) for found in grace), "the pod is killed before it ended"
    assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    compose = documents(DOCKER / "compose.yaml")[0]
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port}"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./") and not source.startswith("./state"):
                assert (DOCKER / source).exists(), f"{name} mounts {source}, which is not there"
    profile = json.loads((DOCKER / "seccomp.json").read_text())
    allowed = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {"io_uring_setup", "io_uring_enter", "io_uring_register"} <= allowed
    assert not {"ptrace", "mount", "bpf", "keyctl", "process_vm_readv", "init_module", "userfaultfd"} & allowed
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    for word in ("HEALTHCHECK", "ENTRYPOINT", "CMD"):
        for line in lines:
            if line.startswith(word):
                assert "[" in line, f"{line}: the shell would take the signals"
    print(f"{used} keys in deployment files, all known")


main()
