"""A PostgreSQL as an operator runs it, with everything that a thief of backups gets: base backups taken while it works, its
archived log, and scratch clusters in which they run again. Everything is below one folder of PostgreSQL's own user."""
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "crash"))
from server import database_user, postgres_program, wait_until  # noqa: E402

WAIT_SECONDS = 300
BACKUPS_OF_ONE_PAUSE = 15
# Small files of the log, so that the archive is whole at any time; everything else that matters here as PostgreSQL has it by
# itself. Images of whole pages are not squeezed: the carver does not see through that (wal_compression is off by default).
CONFIGURATION = """
listen_addresses = ''
max_connections = 80
shared_buffers = 32MB
wal_level = replica
wal_keep_size = 64MB
wal_compression = off
archive_mode = on
archive_command = 'test ! -f {archive}/%f && cp %p {scratch}/%f && mv {scratch}/%f {archive}/%f'
restore_command = 'cp {archive}/%f %p'
"""


def run(*command, **options):
    """As PostgreSQL's user; what went wrong is in the exception."""
    done = subprocess.run(command, capture_output=True, text=True, **database_user(), **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stdout[-500:]} {done.stderr[-1000:]}")
    return done.stdout


def size_of(*paths):
    """What is really there of sparse files."""
    return sum(file.lstat().st_blocks * 512 for path in paths for file in pathlib.Path(path).rglob("*") if file.is_file())


class Postgres:
    """One data folder with at most one server on it."""

    def __init__(self, data, sockets, *options):
        self.data, self.sockets, self.options, self.process = data, sockets, options, None

    def start(self):
        with open(self.data + ".log", "ab") as log:
            self.process = subprocess.Popen(
                [postgres_program("postgres"), "-D", self.data, "-c", "unix_socket_directories=" + self.sockets, *self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **database_user())

    def query(self, text):
        return run(postgres_program("psql"), "-XqAt", "-h", self.sockets, "-U", "kvrun", "-d", "postgres", "-c", text).strip()

    def says(self, text):
        """Whether the answer is true; not yet, while there is none. To be asked again and again: takes its time."""
        time.sleep(0.2)
        try:
            return self.query(text) == "t"
        except RuntimeError:
            if self.process.poll() is not None:
                raise RuntimeError("PostgreSQL ended:\n" + pathlib.Path(self.data + ".log").read_text()[-2000:]) from None
            return False

    def dump(self, target):
        with open(target, "wb") as file:
            subprocess.run([postgres_program("pg_dump"), "-h", self.sockets, "-U", "kvrun", "postgres"], stdout=file, check=True,
                           **database_user())

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # fast: a paused recovery would not end for less
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Database(Postgres):
    def __init__(self, folder):
        self.folder = folder
        self.archive, self.backups, self.scratch = (os.path.join(folder, name) for name in ("archive", "backups", "scratch"))
        super().__init__(os.path.join(folder, "data"), folder)
        for place in (self.archive, self.backups, self.scratch):
            os.mkdir(place)
            user = database_user()
            if user:
                os.chown(place, user["user"], user["group"])
        run(postgres_program("initdb"), "-D", self.data, "-U", "kvrun", "--auth=trust", "--no-sync", "--no-instructions", "-E", "UTF8",
            "--locale=C", "--data-checksums", "--wal-segsize=1")
        with open(os.path.join(self.data, "postgresql.conf"), "a") as file:
            file.write(CONFIGURATION.format(archive=self.archive, scratch=self.scratch))
        self.start()
        wait_until(lambda: self.says("select true"), WAIT_SECONDS, "PostgreSQL's start")
        for name in ("template0", "template1"):  # two thirds of a base backup of a small database, and of no use here
            self.query(f"alter database {name} with is_template false")
            self.query(f"drop database {name}")
        self.taken, self.stopping, self.thread, self.failure = [], threading.Event(), None, None

    def url(self):
        return f"host={self.folder} user=kvrun dbname=postgres connect_timeout=5"

    def back_up(self):
        target = os.path.join(self.backups, f"{len(self.taken):03}")
        run(postgres_program("pg_basebackup"), "-D", target, "-X", "fetch", "--checkpoint=fast", "--no-sync", "-h", self.sockets, "-U",
            "kvrun")
        self.taken.append(target)

    def back_up_every_second(self):
        def work():
            try:
                while not self.stopping.is_set():
                    begun = time.monotonic()
                    self.back_up()
                    # On a machine that is slow the run is long, and as many backups as seconds would make it longer still.
                    pause = 2 ** (len(self.taken) // BACKUPS_OF_ONE_PAUSE)
                    self.stopping.wait(max(0.0, begun + pause - time.monotonic()))
            except Exception as error:  # noqa: BLE001: told to whoever waits for the end
                self.failure = error

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def end_backups(self):
        self.stopping.set()
        if self.thread is not None:
            self.thread.join()
        if self.failure:
            raise self.failure

    def archive_all(self):
        """The log up to now is in the archive."""
        last = self.query("select pg_walfile_name(pg_switch_wal())")
        wait_until(lambda: os.path.exists(os.path.join(self.archive, last)), WAIT_SECONDS, f"{last} in the archive")

    # --- running again

    def restore(self, backup, points):
        """The dumps of a backup at the points: "consistent", the first at which it can be read, and "end", after all of the log."""
        name = os.path.basename(backup)
        place = os.path.join(self.scratch, name)
        run("cp", "-a", backup, place)
        run("touch", os.path.join(place, "recovery.signal"))
        sockets = os.path.join(self.scratch, name + ".s")
        run("mkdir", sockets)
        return [self.restored(place, sockets, point) for point in points]

    def restored(self, place, sockets, point):
        target = ("-c", "recovery_target=immediate", "-c", "recovery_target_action=pause") if point == "consistent" else ()
        server = Postgres(place, sockets, "-c", "archive_mode=off", "-c", "fsync=off", *target)
        server.start()
        try:
            wait_until(lambda: server.says("select pg_is_in_recovery()" if target else "select not pg_is_in_recovery()"), WAIT_SECONDS,
                       f"{place} at its {point} point")
            dump = f"{place}.{point}.sql"
            server.dump(dump)
            return dump
        finally:
            server.stop()

    def restore_all(self, wanted):
        """Of (backup, points), two at a time."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return [dump for dumps in pool.map(lambda one: self.restore(*one), wanted) for dump in dumps]

    def end(self):
        self.stopping.set()
        if self.thread is not None:
            self.thread.join()
        self.stop()
