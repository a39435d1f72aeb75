"""A client of kvrun for inference engines, over the server's UNIX sockets: the standard library only, Python 3.9 or later.

It does what libkvrun does (c/kvrun.h), under the same names. A cache that fails is a miss: lookup, offload and restore
answer whatever becomes of the server. When it is gone, hangs or answers nonsense every block is a miss, `cause` says why,
and stats() counts it; after such a failure calls answer at once until the heartbeat has found the server again and has
registered the engine and its pools anew. What the caller did wrong raises Error: an argument, an erased session, a key
that is not valid.

Any thread may call. Callbacks run on the heartbeat's thread; they may call stats(), and nothing else.
"""
from __future__ import annotations

import dataclasses
import fcntl
import http.client
import json
import logging
import os
import pathlib
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

__version__ = "0.1.0"
__all__ = ["Client", "Error", "Model", "Region", "Pool", "Found", "Moved", "Erasure", "Stats", "memory"]

POOLS_MAX = 8
BLOCKS_PER_CALL_MAX = 4096
DEADLINE_MS_MAX = 30000
WAIT_SECONDS_MAX = 60
_ANSWER_BYTES_MAX = 4 << 20
_IDLE_MAX = 4  # connections kept open
_LEASE_SECONDS = 5
_BACK_OFF_SECONDS = 0.1
_BACK_OFF_SECONDS_SICK = 30.0

RESULTS = ("failed", "stored", "present", "restored", "missing", "recompute", "quarantined", "erased", "denied",
           "stale_page", "busy", "timeout")  # what is not here counts as the first
TIERS = ("dram", "nvme", "object")
# Refusals that are a result of each block; the server goes on being asked.
_PASSING = {"busy": "busy", "rate_limited": "busy", "full": "busy", "no_space": "busy", "timeout": "timeout",
            "quota": "denied", "policy_denied": "denied", "tenant_suspended": "denied"}


class Error(Exception):
    """`code`: the server's ("session_erased"), or "transport" (no connection, no answer in time), "protocol" (an answer
    that is not what the interface promises), "down" (not asked, because the server did not answer before),
    "invalid_argument", "limit". `status`: of HTTP; 0: no answer came."""

    def __init__(self, code: str, detail: str, status: int = 0, retryable: bool = False) -> None:
        super().__init__(f"{code} ({status}): {detail}")
        self.code, self.detail, self.status, self.retryable = code, detail, status, retryable

    @property
    def _outage(self) -> bool:
        """It says nothing about the caller's arguments: the server is away or not well."""
        return self.status >= 500 or self.code in ("transport", "protocol", "down", "engine_unknown", "busy", "rate_limited")


@dataclasses.dataclass(frozen=True)
class Model:
    id: str
    revision: str
    fingerprint: Optional[str] = None  # 64 hex digits

    def _json(self) -> Dict[str, str]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Region:
    offset_bytes: int
    stride_bytes: int
    run_bytes: int


@dataclasses.dataclass(frozen=True)
class Pool:
    """`fd`: a memfd sealed with F_SEAL_SHRINK, as memory() makes it; it stays the caller's. `regions`: a page is a run in
    each; without them pages of block_bytes lie one after the other."""
    fd: int
    size_bytes: int
    format: str
    engine_version: str
    tokens_per_block: int
    slots: int
    block_bytes: int
    regions: Sequence[Region] = ()

    def _layout(self) -> Dict[str, Any]:
        layout = {"format": self.format, "engine_version": self.engine_version, "tokens_per_block": self.tokens_per_block,
                  "slots": self.slots}
        if not self.regions:
            return {"kind": "opaque", **layout, "page_bytes": self.block_bytes}
        return {"kind": "regions", **layout, "bytes_per_block": self.block_bytes,
                "regions": [dataclasses.asdict(region) for region in self.regions]}


@dataclasses.dataclass(frozen=True)
class Found:
    prefix_blocks: int  # that are here, from the first on without a gap
    tiers: List[str]    # of each block: "none", "dram", "dram+nvme" …
    cause: str = ""     # otherwise why all of the call was a miss


@dataclasses.dataclass(frozen=True)
class Moved:
    results: List[str]  # of each block, see RESULTS. Any but "restored": a restore left the page as it was
    tiers: List[str]
    operation_id: str = ""
    stored: int = 0
    present: int = 0
    contiguous_blocks: int = 0  # restore: usable, from the first on
    bytes: int = 0
    duration_us: int = 0
    # 0: the pages are the engine's again. Otherwise the server may still read or write them: neither free nor use them
    # before hold_is_over().
    hold: int = 0
    cause: str = ""  # otherwise why all of the call was a miss


@dataclasses.dataclass(frozen=True)
class Erasure:
    id: str
    state: str  # "certified" when the certificate is there


@dataclasses.dataclass
class Stats:
    """As struct kvrun_stats, where each is explained."""
    lookups: int = 0
    offloads: int = 0
    restores: int = 0
    calls_answered: int = 0
    calls_missed: int = 0
    calls_refused: int = 0
    missed_down: int = 0
    missed_transport: int = 0
    missed_protocol: int = 0
    missed_server: int = 0
    blocks_offered: int = 0
    blocks_stored: int = 0
    blocks_present: int = 0
    blocks_not_stored: int = 0
    blocks_asked: int = 0
    blocks_restored: int = 0
    blocks_not_restored: int = 0
    heartbeats: int = 0
    heartbeats_failed: int = 0
    registrations: int = 0
    holds: int = 0
    revocations: int = 0
    up: bool = False


def memory(size_bytes: int, name: str = "kvrun-pool") -> int:
    """A descriptor of memory that a pool can be: map it, and close it when the engine ends."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError:
        os.close(fd)
        raise
    return fd


# --- transport ----------------------------------------------------------------------------------------------------------


class _Socket(socket.socket):
    """One whose time-out is that of an exchange, however many pieces it comes in."""
    end = 0.0

    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(max(0.001, self.end - time.monotonic()))
        return super().recv_into(*arguments)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("kvrun")
        self.path = path

    def connect(self) -> None:
        self.sock = _Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)

    def is_stale(self) -> bool:
        """The server closed it, or sent what nobody asked for."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))


def _once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a member twice")
    return dict(pairs)


def _parse(data: bytes) -> Optional[Dict[str, Any]]:
    try:
        value = json.loads(data.decode(), object_pairs_hook=_once)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _problem(answer: Optional[Dict[str, Any]], status: int) -> Error:
    answer = answer or {}
    code, detail = answer.get("code"), answer.get("detail") or answer.get("title") or ""
    if not isinstance(code, str):
        return Error("protocol", f"status {status} without a problem document", status)
    errors = answer.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    if status == 404 and isinstance(first, dict) and first.get("pointer") == "/pool_id":
        code = "engine_unknown"  # the pool's number is the client's own: that the server lost it is no mistake of the caller
    return Error(code, str(detail), status, answer.get("retryable") is True)


def _member(answer: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = answer.get(name, default)
    if not isinstance(value, kind):
        raise Error("protocol", f'the answer has no usable member "{name}"')
    return value


def _check_id(text: str, prefix: str) -> str:
    """Ids go into paths."""
    if not text.startswith(prefix + "_") or not text.isascii() or not text.replace("_", "").isalnum() or len(text) > 31:
        raise Error("protocol", f"an id that starts with {prefix}_ is expected")
    return text


class _Entry:
    """A pool, and where it stands; kvrun_int.h says what each of these means."""

    def __init__(self, pool: Pool) -> None:
        self.fd = fcntl.fcntl(pool.fd, fcntl.F_DUPFD_CLOEXEC, 0)
        self.size_bytes, self.layout = pool.size_bytes, pool._layout()
        self.server_id = ""
        self.epoch = self.clean_epoch = self.running = 0
        self.unclean = self.held = self.in_doubt = self.lost = False


class Client:
    """`timeout_ms`: the longest wait for a lookup and a heartbeat, and for a transfer beyond its deadline.
    `control_timeout_ms`: for what is not on an engine's path. `deadline_ms`: of a transfer that has none of its own."""

    def __init__(self, socket_path: str, token: str, *, fd_socket_path: Optional[str] = None, timeout_ms: int = 1000,
                 control_timeout_ms: int = 10000, deadline_ms: int = 5000) -> None:
        if not token or "\r" in token or "\n" in token:
            raise Error("invalid_argument", "an API key of one line is needed")
        if any(len(os.fsencode(path or "")) > 107 for path in (socket_path, fd_socket_path)):
            raise Error("invalid_argument", "the path of a socket is too long")
        if not 0 < deadline_ms <= DEADLINE_MS_MAX:
            raise Error("invalid_argument", f"a deadline is at most {DEADLINE_MS_MAX} ms")
        self._socket_path, self._fd_socket_path = socket_path, fd_socket_path
        self._headers = {"Authorization": "Bearer " + token, "Accept": "application/json",
                         "Content-Type": "application/json"}
        self._timeout, self._control_timeout = timeout_ms / 1000, control_timeout_ms / 1000
        self._deadline_ms = deadline_ms
        self._lock = threading.Condition()  # short: nothing is asked while it is held
        self._link_lock = threading.Lock()  # held while engine and pools are registered; never by lookups and transfers
        self._idle: List[_Connection] = []
        self._pools: Dict[int, _Entry] = {}
        self._left: Dict[int, _Entry] = {}  # dropped ones whose holds outlast them
        self._stats = Stats()
        self._registration: Optional[Dict[str, Any]] = None
        self._revoked: Optional[Callable[[str], None]] = None
        self._link_changed: Optional[Callable[[bool, Optional[Error]], None]] = None
        self._engine_id = self._incarnation = ""
        self._lease, self._seq, self._generation, self._pool_count = float(_LEASE_SECONDS), 0, 0, 0
        self._suspected = self._stop = False
        self._why = Error("down", "the engine is not registered")
        self._thread: Optional[threading.Thread] = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the heartbeat. The engine's lease runs out by itself; unregister() ends it at once."""
        self._stop_heartbeat()
        with self._lock:
            while self._idle:
                self._idle.pop().close()
            for entry in self._pools.values():
                os.close(entry.fd)
            self._pools.clear()

    def stats(self) -> Stats:
        with self._lock:
            return dataclasses.replace(self._stats)

    def ready(self) -> Optional[Error]:
        """None when the server knows the engine and all of its pools; otherwise what went wrong last. Asks nobody."""
        with self._lock:
            return None if self._stats.up else self._why

    def _exchange(self, connection: _Connection, method: str, path: str, data: Optional[bytes],
                  headers: Mapping[str, str]) -> Tuple[int, bytes]:
        connection.request(method, path, body=data, headers=dict(headers))
        response = connection.getresponse()
        body = response.read(_ANSWER_BYTES_MAX + 1)
        if len(body) > _ANSWER_BYTES_MAX:
            raise Error("protocol", f"the answer is longer than {_ANSWER_BYTES_MAX} bytes")
        return response.status, body

    def _send(self, method: str, path: str, data: Optional[bytes], headers: Mapping[str, str], timeout: float,
              sent: List[bool]) -> Tuple[int, bytes]:
        end = time.monotonic() + timeout
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else _Connection(self._socket_path)
            reused = connection.sock is not None and not connection.is_stale()
            try:
                if not reused:
                    connection.close()
                    connection.timeout = timeout
                    connection.connect()
                connection.sock.end = end
                connection.sock.settimeout(max(0.001, end - time.monotonic()))
                sent.append(True)
                answer = self._exchange(connection, method, path, data, headers)
            except (OSError, http.client.HTTPException, Error) as why:
                connection.close()
                if reused and isinstance(why, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
                    continue  # it was closed while nobody used it
                if isinstance(why, Error):
                    raise
                raise Error("transport", f"{method} {path}: {why}; is the server running on this socket?",
                            retryable=True) from why
            with self._lock:
                if len(self._idle) < _IDLE_MAX:
                    self._idle.append(connection)
                    return answer
            connection.close()
            return answer

    def ask(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None, *, wait_seconds: int = 0,
            _timeout: Optional[float] = None, _sent: Optional[List[bool]] = None) -> Optional[Dict[str, Any]]:
        """Any request of the interface; None for an answer without a body."""
        headers = dict(self._headers)
        if wait_seconds:
            headers["Prefer"] = f"wait={wait_seconds}"
        data = None
        if body is not None:
            try:
                data = json.dumps(body, separators=(",", ":")).encode()
            except (TypeError, ValueError) as why:
                raise Error("invalid_argument", f"the request cannot be written as JSON: {why}") from why
        timeout = (self._control_timeout if _timeout is None else _timeout) + wait_seconds
        status, text = self._send(method, path, data, headers, timeout, [] if _sent is None else _sent)
        answer = _parse(text) if text else None
        if not 200 <= status < 300:
            raise _problem(answer, status)
        if text and answer is None:
            raise Error("protocol", f"status {status} with a body that is not a JSON object", status)
        return answer

    def _post(self, path: str, body: Mapping[str, Any]) -> Dict[str, Any]:
        return self.ask("POST", path, body) or {}

    # --- the engine -------------------------------------------------------------------------------------------------------

    def register(self, name: str, kind: str, engine_version: str, model: Model, *, lease_seconds: Optional[int] = None,
                 pid: Optional[int] = None, revoked: Optional[Callable[[str], None]] = None,
                 link_changed: Optional[Callable[[bool, Optional[Error]], None]] = None) -> None:
        """Registers, and keeps the lease from now on. Does not fail when the server is away: it is looked for until it is
        there."""
        with self._link_lock:
            if self._registration is not None:
                raise Error("invalid_argument", "this client's engine is registered already")
            boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            self._registration = {"name": name, "kind": kind, "engine_version": engine_version, "pid": pid or os.getpid(),
                                  "boot_id": boot_id, "model": model._json()}
            if lease_seconds is not None:
                self._registration["lease_seconds"] = lease_seconds
            self._revoked, self._link_changed, self._stop = revoked, link_changed, False
            why = self._renew()
            if why is not None and not why._outage:
                self._registration = None
                raise why
            self._thread = threading.Thread(target=self._heartbeat, name="kvrun-heartbeat", daemon=True)
            self._thread.start()

    def unregister(self) -> None:
        """Stops the heartbeat, forgets the pools, and ends the lease; Error when the server could not be told."""
        self._stop_heartbeat()
        with self._link_lock:
            try:
                if not self._engine_id:
                    raise Error("invalid_argument", "no engine is registered")
                self.ask("DELETE", f"/v1/engines/{self._engine_id}")
            finally:
                self._engine_id, self._registration = "", None
                for number in list(self._pools):
                    self._drop(number)
                with self._lock:
                    self._stats.up, self._why = False, Error("down", "the engine is not registered")

    def _stop_heartbeat(self) -> None:
        with self._lock:
            self._stop = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _heartbeat(self) -> None:
        """While the server is away it is looked for after a tenth of a second, then in steps that double up to a heartbeat's
        time. One that is there but fails each call that it gets keeps its engines by their beats, and is asked for blocks
        after steps that double up to half a minute."""
        def step(most: float) -> float:
            return min(back_off * 2 or _BACK_OFF_SECONDS, most)

        why, answered = self.ready(), self.stats().calls_answered  # when it came
        left = back_off = 0.0 if why is None else _BACK_OFF_SECONDS
        self._tell(why)
        while True:
            period = self._lease / 3
            wait = period if why is None else min(left, period)
            if not self._wait_for_beat(wait, why is None):
                return
            if why is None and self.ready() is not None:  # a call found out
                why = self.ready()
                self._tell(why)
                left = back_off = 0.0 if self.stats().calls_answered != answered else step(_BACK_OFF_SECONDS_SICK)
                continue
            left = max(0.0, left - wait)
            with self._link_lock:
                now = self._renew(trusted=left == 0.0)
            if (now is None) != (why is None):
                self._tell(now)
                answered = self.stats().calls_answered
            if now is not None and left == 0.0:
                left = back_off = step(period)
            why = now

    def _wait_for_beat(self, seconds: float, up: bool) -> bool:
        """False when it has to end."""
        end = time.monotonic() + seconds
        with self._lock:
            while not self._stop and not (up and self._suspected) and time.monotonic() < end:
                self._lock.wait(max(0.0, end - time.monotonic()))
            return not self._stop

    def _tell(self, why: Optional[Error]) -> None:
        self._call_back(self._link_changed, why is None, why)

    @staticmethod
    def _call_back(function: Optional[Callable[..., None]], *arguments: Any) -> None:
        """What it raises must not end the heartbeat."""
        try:
            if function is not None:
                function(*arguments)
        except Exception:
            logging.getLogger("kvrun").exception("a callback failed")

    def _renew(self, trusted: bool = True) -> Optional[Error]:
        """Under _link_lock: beats, and registers what the server does not know. None: calls may ask the server; never when it
        is not trusted. Otherwise what went wrong."""
        with self._lock:
            self._suspected = False
        why: Optional[Error] = None
        try:
            if not self._engine_id or not self._beat():
                self._register_now()
            self._renew_pools()
        except Error as error:
            why = error
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # of an answer that makes no sense
            why = Error("protocol", repr(error))
        with self._lock:
            if why is not None:
                self._why = why
            fine = why is None and trusted and not self._suspected
            self._generation += fine and not self._stats.up
            self._stats.up = fine
            return None if fine else self._why

    def _beat(self) -> bool:
        """False when the server does not know the engine."""
        self._seq += 1
        try:
            answer = self.ask("POST", f"/v1/engines/{self._engine_id}:heartbeat", {"seq": self._seq},
                              _timeout=self._timeout) or {}
        except Error as why:
            with self._lock:
                self._stats.heartbeats += 1
                self._stats.heartbeats_failed += 1
            if why.code != "engine_unknown":
                raise
            self._engine_id = ""  # whatever it is called next: its pools are not there
            return False
        with self._lock:
            self._stats.heartbeats += 1
        for revocation in answer.get("revocations") or []:
            session = revocation.get("session_id") if isinstance(revocation, dict) else None
            if isinstance(session, str):
                with self._lock:
                    self._stats.revocations += 1
                self._call_back(self._revoked, session)
        return True

    def _register_now(self) -> None:
        answer = self._post("/v1/engines", self._registration or {})
        engine_id = _check_id(_member(answer, "id", str), "eng")
        incarnation = _member(answer, "server_incarnation", str)
        seconds = answer.get("lease_seconds")
        self._lease = float(seconds if isinstance(seconds, int) and 0 < seconds <= 3600 else _LEASE_SECONDS)
        restarted = incarnation != self._incarnation
        if restarted:
            with self._lock:
                self._left.clear()
        if restarted or engine_id != self._engine_id:
            for entry in self._pools.values():
                with self._lock:
                    entry.unclean, entry.held = entry.unclean and not restarted, entry.held and not restarted
                self._end_epoch(entry, "clean" if restarted else "silent")
        self._engine_id, self._incarnation = engine_id, incarnation
        with self._lock:
            self._stats.registrations += 1

    def _suspect(self, generation: int, why: Error) -> None:
        """A call of that generation found the server away: no other one asks until a renewal went well."""
        with self._lock:
            if self._registration is not None and generation == self._generation:
                self._stats.up, self._suspected, self._why = False, True, why
                self._lock.notify_all()

    # --- pools ------------------------------------------------------------------------------------------------------------

    def pool_register(self, pool: Pool) -> int:
        """A number of the client's own, which stays the same however often the server restarts."""
        if self._fd_socket_path is None:
            raise Error("invalid_argument", "the client was made without a descriptor socket")
        with self._link_lock:
            if self._registration is None:
                raise Error("invalid_argument", "register the engine first")
            if len(self._pools) == POOLS_MAX:
                raise Error("limit", f"an engine has at most {POOLS_MAX} pools")
            try:
                entry = _Entry(pool)
            except (OSError, ValueError) as why:
                raise Error("invalid_argument", f"the pool's descriptor: {why}") from why
            number, self._pool_count = self._pool_count, self._pool_count + 1
            with self._lock:
                self._pools[number] = entry
            refusal = self._renew() if self.ready() is None else None
            if refusal is not None and not refusal._outage:
                self._drop(number)
                self._renew()
                raise refusal
            return number

    def pool_remove(self, pool: int) -> None:
        """When it returns, nothing touches the memory any more."""
        with self._link_lock:
            entry = self._pools.get(pool)
            if entry is None:
                raise Error("invalid_argument", "this client has no pool of that number")
            if entry.server_id:
                self._close_pool(entry)
            if entry.unclean:
                raise Error("pool_busy", "the server has not said that nothing touches the memory any more", retryable=True)
            self._drop(pool)

    def hold_is_over(self, pool: int, hold: int) -> bool:
        """The heartbeat closes such a pool and registers it again; that, or the server's restart, ends the hold."""
        with self._lock:
            entry = self._pools.get(pool) or self._left.get(pool)
            return hold == 0 or entry is None or entry.clean_epoch > hold

    def _drop(self, number: int) -> None:
        self._end_epoch(self._pools[number], "silent")
        with self._lock:
            entry = self._pools.pop(number)
            if entry.unclean:
                self._left[number] = entry
        os.close(entry.fd)

    def _end_epoch(self, entry: _Entry, how: str) -> None:
        """`clean`: nothing touches the memory; `busy`: something does; `silent`: it is not there any more."""
        with self._lock:
            entry.server_id = ""
            held = how == "busy" or (how == "silent" and entry.in_doubt)
            entry.held = entry.held or held
            entry.unclean = entry.unclean or held or (how == "silent" and entry.running > 0)
            entry.in_doubt = entry.lost = False
            if not entry.unclean:
                entry.clean_epoch = entry.epoch + 1

    def _close_pool(self, entry: _Entry) -> None:
        how = "clean"
        try:
            self.ask("DELETE", f"/v1/pools/{entry.server_id}")
        except Error as why:
            if why.status not in (404, 410, 504):
                raise
            how = "busy" if why.status == 504 else "silent"
        self._end_epoch(entry, how)

    def _renew_pools(self) -> None:
        for entry in list(self._pools.values()):
            with self._lock:
                in_doubt, lost = entry.in_doubt, entry.lost
            if entry.server_id and lost:
                self._end_epoch(entry, "silent")
            if entry.server_id and in_doubt:
                self._close_pool(entry)
            if not entry.server_id:
                self._post_pool(entry)

    def _post_pool(self, entry: _Entry) -> None:
        memory_json = {"kind": "memfd", "fd_token": self._hand_over(entry.fd), "size_bytes": entry.size_bytes}
        answer = self._post(f"/v1/engines/{self._engine_id}/pools", {"memory": memory_json, "layout": entry.layout})
        server_id = _check_id(_member(answer, "id", str), "poo")
        with self._lock:
            entry.server_id, entry.epoch = server_id, entry.epoch + 1

    def _hand_over(self, fd: int) -> str:
        """One byte with the descriptor attached, one line back: a token that names it."""
        line = b""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._control_timeout)
                connection.connect(self._fd_socket_path or "")
                socket.send_fds(connection, [b"F"], [fd])
                while not line.endswith(b"\n") and len(line) < 128:
                    part = connection.recv(128 - len(line))
                    if not part:
                        raise OSError("closed without an answer")
                    line += part
        except OSError as why:
            raise Error("transport", f"descriptor socket: {why}", retryable=True) from why
        text = line.decode("ascii", "replace").strip()
        if text.startswith("error "):
            raise Error(text[6:], "the server refused the descriptor")
        if not text.startswith("tok_") or len(text) > 47:
            raise Error("protocol", "the descriptor socket's answer is not a token")
        return text

    # --- sessions ---------------------------------------------------------------------------------------------------------

    def session_open(self, model: Model, *, external_id: Optional[str] = None, labels: Optional[Mapping[str, str]] = None,
                     ttl_seconds: Optional[int] = None, idle_ttl_seconds: Optional[int] = None,
                     sharing_scope: Optional[str] = None) -> str:
        """Its id. The session that has this external_id already is the answer. `sharing_scope`: your own name of what it
        shares with other sessions of the model."""
        with self._lock:
            generation = self._generation
            if self._registration is not None and not self._stats.up:
                raise Error("down", f"the server is away: {self._why.detail}", retryable=True)
        members = {"external_id": external_id, "labels": dict(labels) if labels else None, "ttl_seconds": ttl_seconds,
                   "idle_ttl_seconds": idle_ttl_seconds, "sharing_scope": sharing_scope}
        body = {"model": model._json(), **{name: value for name, value in members.items() if value is not None}}
        try:
            return str(_member(self._post("/v1/sessions", body), "id", str))
        except Error as why:
            if why.code == "transport":
                self._suspect(generation, why)
            raise

    def erase(self, session_id: str, *, basis: Optional[str] = None, reason: Optional[str] = None,
              wait_seconds: int = 0) -> Erasure:
        """Waits up to `wait_seconds`, 60 at most, for the certificate."""
        if not 0 <= wait_seconds <= WAIT_SECONDS_MAX:
            raise Error("invalid_argument", f"at most {WAIT_SECONDS_MAX} s can be waited for")
        body: Dict[str, Any] = {"scope": {"session_id": session_id}}
        body.update({name: value for name, value in (("basis", basis), ("reason", reason)) if value is not None})
        answer = self.ask("POST", "/v1/erasures", body, wait_seconds=wait_seconds) or {}
        return Erasure(_member(answer, "id", str), _member(answer, "state", str))

    # --- blocks -----------------------------------------------------------------------------------------------------------

    def lookup(self, session_id: str, pool: int, hashes: Sequence[bytes], *, shared_blocks: int = 0) -> Found:
        """`hashes`: the engine's own chained hash of each block, 32 bytes. `shared_blocks`, here and below: so many of the
        first belong to what the session shares."""
        count = len(hashes)
        members = {"shared_blocks": shared_blocks} if shared_blocks else {}
        answer, _, cause, _ = self._run("lookups", session_id, pool, hashes, members)
        if answer is None:
            return Found(0, ["none"] * count, cause)
        return Found(answer["prefix_blocks"], answer["tiers"])

    def offload(self, session_id: str, pool: int, hashes: Sequence[bytes], slots: Sequence[int], *,
                generations: Optional[Sequence[int]] = None, durable: bool = False,
                deadline_ms: Optional[int] = None, shared_blocks: int = 0) -> Moved:
        """The pages must be final. `durable`: answers when the blocks are on storage that survives the server."""
        members = self._transfer(slots, generations, deadline_ms, shared_blocks)
        members["wait"] = "durable" if durable else "dram"
        return self._moved(*self._run("offloads", session_id, pool, hashes, members), len(hashes))

    def restore(self, session_id: str, pool: int, hashes: Sequence[bytes], slots: Sequence[int], *,
                generations: Optional[Sequence[int]] = None, deadline_ms: Optional[int] = None,
                shared_blocks: int = 0) -> Moved:
        members = self._transfer(slots, generations, deadline_ms, shared_blocks)
        return self._moved(*self._run("restores", session_id, pool, hashes, members), len(hashes))

    def _transfer(self, slots: Sequence[int], generations: Optional[Sequence[int]], deadline_ms: Optional[int],
                  shared_blocks: int) -> Dict[str, Any]:
        members: Dict[str, Any] = {"slots": [int(slot) for slot in slots],
                                   "deadline_ms": self._deadline_ms if deadline_ms is None else deadline_ms}
        if generations is not None:
            members["generations"] = [int(generation) for generation in generations]
        if shared_blocks:
            members["shared_blocks"] = shared_blocks
        return members

    @staticmethod
    def _moved(answer: Optional[Dict[str, Any]], result: str, cause: str, hold: int, count: int) -> Moved:
        if answer is None:
            return Moved([result] * count, ["none"] * count, cause=cause, hold=hold)
        numbers = {name: _member(answer, name, int, 0)
                   for name in ("stored", "present", "contiguous_blocks", "bytes", "duration_us")}
        return Moved(answer["results"], answer["tiers"], operation_id=answer["operation_id"], **numbers)

    def _run(self, what: str, session_id: str, pool: int, hashes: Sequence[bytes],
             members: Mapping[str, Any]) -> Tuple[Optional[Dict[str, Any]], str, str, int]:
        """An answer; or None with each block's result, the cause, and the hold."""
        answer: Optional[Dict[str, Any]] = None
        result, cause, hold = "missing" if what != "offloads" else "failed", "", 0
        try:
            answer, hold = self._ask_with_pool(what, session_id, pool, hashes, members)
        except Error as why:
            hold = getattr(why, "hold", 0)
            if why.code not in _PASSING and not why._outage:
                self._count(what, len(hashes), None, why, missed=False)
                raise
            result, cause = _PASSING.get(why.code, result), why.code
            self._count(what, len(hashes), None, why, missed=True)
            return None, result, cause, hold
        self._count(what, len(hashes), answer, None, missed=False)
        return answer, result, cause, hold

    def _ask_with_pool(self, what: str, session_id: str, pool: int, hashes: Sequence[bytes],
                       members: Mapping[str, Any]) -> Tuple[Dict[str, Any], int]:
        count = len(hashes)
        if not 0 < count <= BLOCKS_PER_CALL_MAX:
            raise Error("invalid_argument", f"1 to {BLOCKS_PER_CALL_MAX} blocks a call")
        if not isinstance(session_id, str) or any(len(hash_) != 32 for hash_ in hashes) or any(
                len(members[name]) != count for name in ("slots", "generations") if name in members):
            raise Error("invalid_argument", "a session, hashes of 32 bytes, and as many slots are needed")
        with self._lock:
            entry = self._pools.get(pool)
            if entry is None:
                raise Error("invalid_argument", "this client has no pool of that number")
            if not self._stats.up or not entry.server_id:
                raise Error("down", self._why.detail)
            entry.running += 1
            pool_id, epoch, generation = entry.server_id, entry.epoch, self._generation
        body = {"session_id": session_id, "pool_id": pool_id, "hashes": [bytes(hash_).hex() for hash_ in hashes], **members}
        sent: List[bool] = []
        how, why = "answered", None
        try:
            answer = self.ask("POST", f"/v1/{what}", body, _sent=sent,
                              _timeout=self._timeout + members.get("deadline_ms", 0) / 1000) or {}
            self._check_answer(what, answer, count)
            return answer, 0
        except Error as error:
            why = error
            if error.code == "engine_unknown":
                how = "lost"
            elif error.code in ("transport", "protocol") and sent and what != "lookups":
                how = "in_doubt"
            raise
        finally:
            hold = self._end_use(entry, epoch, how)
            if why is not None:
                why.hold = hold  # type: ignore[attr-defined]
                if why._outage and why.code not in _PASSING:
                    self._suspect(generation, why)

    def _end_use(self, entry: _Entry, epoch: int, how: str) -> int:
        with self._lock:
            entry.running -= 1
            hold = epoch if how == "in_doubt" and entry.clean_epoch <= epoch else 0
            ended = entry.epoch != epoch or not entry.server_id
            entry.lost = entry.lost or (how == "lost" and not ended)
            if hold:
                self._stats.holds += 1
                entry.in_doubt, entry.held = entry.in_doubt or not ended, entry.held or ended
            if entry.running == 0 and entry.unclean and not entry.held:  # all that were on their way have come back
                entry.unclean = False
                entry.clean_epoch = entry.epoch if entry.server_id else entry.epoch + 1
            return hold

    @staticmethod
    def _check_answer(what: str, answer: Dict[str, Any], count: int) -> None:
        """Holds an answer to what the interface promises; results and tiers that have no name here get the cautious one."""
        for name in ("tiers",) if what == "lookups" else ("tiers", "results"):
            column = answer.get(name)
            if not isinstance(column, list) or len(column) != count or not all(isinstance(text, str) for text in column):
                raise Error("protocol", f'the answer\'s "{name}" is not a list of {count} texts')
        answer["tiers"] = ["+".join(tier for tier in TIERS if tier in text) or "none" for text in answer["tiers"]]
        for name in ("bytes", "duration_us"):
            _member(answer, name, int, 0)
        numbers = ("prefix_blocks",) if what == "lookups" else ("contiguous_blocks", "stored", "present")
        if any(not 0 <= _member(answer, name, int, 0) <= count for name in numbers):
            raise Error("protocol", "more blocks than were asked for")
        answer.setdefault("prefix_blocks", 0)
        if what != "lookups":
            answer["results"] = [text if text in RESULTS else "failed" for text in answer["results"]]
            _member(answer, "operation_id", str)

    def _count(self, what: str, count: int, answer: Optional[Dict[str, Any]], why: Optional[Error], missed: bool) -> None:
        with self._lock:
            stats = self._stats
            setattr(stats, what, getattr(stats, what) + 1)
            stats.calls_answered += answer is not None
            stats.calls_missed += missed
            stats.calls_refused += answer is None and not missed
            if missed and why is not None:
                reason = ("down" if why.code == "down" else "protocol" if why.code == "protocol" else
                          "server" if why.status else "transport")
                setattr(stats, "missed_" + reason, getattr(stats, "missed_" + reason) + 1)
            if answer is None and not missed:
                return
            results = answer["results"] if answer is not None and what != "lookups" else []
            if what == "offloads":
                stored, present = results.count("stored"), results.count("present")
                stats.blocks_offered += count
                stats.blocks_stored += stored
                stats.blocks_present += present
                stats.blocks_not_stored += count - stored - present
            elif what == "restores":
                stats.blocks_asked += count
                stats.blocks_restored += results.count("restored")
                stats.blocks_not_restored += count - results.count("restored")
