"""Requests as many clients send them: on connections that are kept, at once, in pieces, refused, cut off. What they carry is
what the canary test looks for afterwards."""
import contextlib
import http.client
import json
import socket
import threading

import rig
from exposition import Exposition

CLIENTS, ROUNDS = 8, 3


def requests_of(token, said):
    """Method, path, headers, body: taken or refused, small and large."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for number, path in enumerate(("/v1/tenants?limit=3", "/v1/sessions", "/v1/status", "/v1/nothing/at/all", "/v1/audit/entries")):
        yield "GET", path, {**headers, "X-Other": said[number % len(said)]}, None
    for path in ("/v1/sessions", "/v1/tenants", "/v1/erasures", "/v1/policies:evaluate", "/v1/lookups"):
        for padding in (0, 500, 9000, 100000):
            body = {"unknown": list(said), "reason": said[0], "token": token, "padding": "x" * padding}
            yield "POST", path, headers, json.dumps(body).encode()
    yield "POST", "/v1/sessions", headers, ('{"external_id":"' + said[0] + '", not JSON').encode()


def client(connect, tokens, said, kept):
    connection = connect()
    for number in range(ROUNDS):
        for method, path, headers, body in requests_of(tokens[number % len(tokens)], said):
            with contextlib.suppress(http.client.HTTPException, OSError):  # refused, with the connection
                connection.request(method, path, body=body, headers=headers)
                connection.getresponse().read()
                continue
            connection.close()
            connection = connect()
    kept.append(connection)


def cut_off(port, token, said):
    """A head and a body that do not end, several requests in one piece, and half a head."""
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    get = f"GET /v1/tenants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    for text in (head + f'Content-Length: 5000\r\n\r\n{{"a":"{said[0]}"', get * 20, head[:-20]):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(text.encode())
            if text.startswith("GET"):
                connection.recv(100)


def connected(server):
    answer = server.call("GET", "/metrics", server.operator, admin=True)
    samples = Exposition(answer.body.decode()).samples
    return sum(value for name, value in samples.items() if name.startswith("kvrun_http_connections{") and "admin" not in name)


def use(server, tokens, said):
    """All of it. The connections that are still there and idle."""
    kept, threads = [], []
    connects = [lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=60),
                lambda: rig.UnixConnection(f"{server.state}/engine.sock", 60)]
    for number in range(CLIENTS):
        threads.append(threading.Thread(target=client, args=(connects[number % 2], tokens, said, kept)))
        threads[-1].start()
    for token in tokens:
        cut_off(server.port, token, said)
    for thread in threads:
        thread.join()
    assert len(kept) == CLIENTS
    rig.wait_for("the end of those that were cut off", lambda: connected(server) <= CLIENTS)
    return kept
