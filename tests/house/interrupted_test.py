"""interrupted_test.py KVRUN: a demo that is interrupted, or fails half way, leaves no process and no folder behind."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

kvrun = sys.argv[1]
WAIT_S = 120


def fail(text):
    print("FAILED:", text)
    sys.exit(1)


def users_of(folder):
    """Processes that name the folder in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read()
        except OSError:
            continue
        if os.fsencode(folder) in line:
            found.append((int(pid), line.replace(b"\0", b" ").decode(errors="replace")))
    return found


def wait_for(what, condition):
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    fail(f"waited {WAIT_S} s for {what}")


def start(program, folder, log):
    # The signal's default action: where a test runs in the background a shell may have it ignored.
    return subprocess.Popen([program, "demo"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                            env={**os.environ, "TMPDIR": folder}, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def nothing_left(folder, when):
    if os.listdir(folder):
        fail(f"{when}: folders are left: {os.listdir(folder)}")
    if users_of(folder):
        fail(f"{when}: processes are left: {users_of(folder)}")


def interrupted(folder, when, signal_number, whole_group):
    path = os.path.join(work, "log")
    with open(path, "wb") as log:
        demo = start(kvrun, folder, log)

    def said():
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    wait_for(when, lambda: when in said() or demo.poll() is not None)
    if demo.poll() is not None:
        fail(f"the demo ended before {when!r}: {said()}")
    # The control: what must be gone afterwards is seen now.
    wait_for("the server to run", lambda: os.listdir(folder) and users_of(folder))
    (os.killpg if whole_group else os.kill)(demo.pid, signal_number)
    if demo.wait(WAIT_S) != -signal_number:
        fail(f"{when}: the demo ended with {demo.returncode} instead of by the signal: {said()}")
    if "demo: interrupted" not in said():
        fail(f"{when}: it does not say that it was interrupted")
    nothing_left(folder, when)
    print("ok: interrupted at", when)


def fails_half_way(folder):
    """Without the attack program beside it the fifth step fails."""
    beside = os.path.join(work, "bin")
    os.mkdir(beside)
    shutil.copy(kvrun, beside)
    shutil.copy(os.path.join(os.path.dirname(kvrun), "kvrun-engine"), beside)
    with tempfile.TemporaryFile(dir=work) as log:
        demo = start(os.path.join(beside, "kvrun"), folder, log)
        code = demo.wait(WAIT_S)
        log.seek(0)
        said = log.read().decode(errors="replace")
    if code != 1 or "demo: FAILED: kvrun-attack" not in said or "the end of the server's log" not in said:
        fail(f"without kvrun-attack it must fail with 1 and say so; it ended with {code}: {said}")
    nothing_left(folder, "a demo that fails")
    print("ok: failed half way")


# A demo uses $TMPDIR only when it is short and others may pass through it.
work = tempfile.mkdtemp(prefix="kvhouse.", dir="/tmp")
try:
    os.chmod(work, 0o711)
    place = os.path.join(work, "t")
    os.mkdir(place)
    os.chmod(place, 0o711)
    interrupted(place, " 1. a server", signal.SIGINT, True)
    interrupted(place, " 3. an engine", signal.SIGINT, True)
    interrupted(place, " 5. the attack", signal.SIGTERM, False)
    fails_half_way(place)
finally:
    shutil.rmtree(work, ignore_errors=True)
