"""Ways to the database that stand between it and a server, and fail as networks do. A folder with a socket, as PostgreSQL's."""
import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time

from server import wait_until

BEGIN = b"BEGIN"
COMMIT = b"Q\0\0\0\x0bCOMMIT\0"
LOST, CARRIED_OUT, LATE = "lost", "carried out", "late"
WAIT_SECONDS = 30


def shut(*ends):
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class Relay:
    """A way to the database that can be made to swallow everything, as a network does that drops packets."""

    def __init__(self, folder, target):
        self.folder, self.target, self.open, self.sockets = folder, target, True, []
        os.makedirs(folder)
        os.chmod(folder, 0o711)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(os.path.join(folder, ".s.PGSQL.5432"))
        os.chmod(os.path.join(folder, ".s.PGSQL.5432"), 0o777)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(os.path.join(self.target, ".s.PGSQL.5432"))
            self.sockets += [client, server]
            self.connected(client, server)

    def connected(self, client, server):
        for pair in ((client, server), (server, client)):
            threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while not self.open:
                    time.sleep(0.01)
                target.sendall(data)
        shut(source, target)

    def close(self):
        self.open = True
        self.listener.close()
        for end in self.sockets:
            end.close()


class CommitRelay(Relay):
    """Cuts off one connection at the COMMIT of the first transaction that runs a certain statement: before the COMMIT got
    through (lost); after it was carried out, before the answer got through (carried out); or it gets through when its client
    is gone and somebody waits for what the transaction holds (late). `cut`: it has come by; `over`: nothing more comes of it."""

    def __init__(self, cluster, waits):
        self.cluster, self.waits = cluster, waits
        self.statement = self.how = None
        self.lock, self.cut, self.over = threading.Lock(), threading.Event(), threading.Event()
        self.home = tempfile.mkdtemp(prefix="kvrelay.")
        os.chmod(self.home, 0o711)
        super().__init__(os.path.join(self.home, "socket"), cluster.folder)

    def database(self, name):
        """As a cluster says it, by this way."""
        return self.cluster.database(name).replace(self.cluster.folder, self.folder)

    def arm(self, statement, how):
        self.statement, self.how = statement.encode() + b"\0", how

    def connected(self, client, server):
        unheard = threading.Event()  # set: answers get through to nobody
        threading.Thread(target=self.requests, args=(client, server, unheard), daemon=True).start()
        threading.Thread(target=self.answers, args=(server, client, unheard), daemon=True).start()

    def is_the_one(self):
        with self.lock:
            first = not self.cut.is_set()
            self.cut.set()
            return first

    def requests(self, client, server, unheard):
        named = False  # in this transaction, the statement
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                named = (named and BEGIN not in data) or (self.statement is not None and self.statement in data)
                if data == COMMIT and named and self.is_the_one():
                    unheard.set()
                    self.cut_off(client, server)
                    return
                server.sendall(data)
        shut(client, server)

    def cut_off(self, client, server):
        if self.how == LATE:
            shut(client)
            with contextlib.suppress(TimeoutError):  # nobody may be waiting, which is what a control shows
                wait_until(self.waits, WAIT_SECONDS, "somebody who waits")
        if self.how == LOST:
            shut(client, server)
        else:
            server.sendall(COMMIT)  # its answer ends the rest

    def answers(self, server, client, unheard):
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if unheard.is_set():
                    break
                client.sendall(data)
        shut(client, server)
        if unheard.is_set():
            self.over.set()

    def remove(self):
        self.close()
        shutil.rmtree(self.home, ignore_errors=True)
