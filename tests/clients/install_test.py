"""What `cmake --install --component client` leaves is enough to write a connector: the examples of api/clients are compiled
with pkg-config's answer and run against a real server."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "http"))
import rig  # noqa: E402

options = None


def run(*command, **environment):
    return subprocess.run(command, check=True, text=True, capture_output=True, env={**os.environ, **environment}).stdout


class Prefix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = pathlib.Path(tempfile.mkdtemp(prefix="kvi."))
        cls.addClassCleanup(shutil.rmtree, cls.prefix)
        run(options.cmake, "--install", options.build, "--component", "client", "--prefix", str(cls.prefix))
        cls.clients = pathlib.Path(options.source, "api/clients")
        cls.library = next(cls.prefix.rglob("libkvrun.so"))
        cls.pkg_config = {"PKG_CONFIG_PATH": str(cls.library.parent / "pkgconfig")}

    def flags(self, *what):
        return run("pkg-config", *what, "kvrun", **self.pkg_config).split()


class Installed(Prefix):
    def test_nothing_but_the_client_is_there(self):
        names = {path.name for path in self.prefix.rglob("*") if not path.is_dir()}
        self.assertEqual(names, {"kvrun.h", "libkvrun.a", "libkvrun.so", "libkvrun.so.0", f"libkvrun.so.{options.version}",
                                 "kvrun.pc", "kvrun.py"})

    def test_versions_agree(self):
        self.assertEqual(run("pkg-config", "--modversion", "kvrun", **self.pkg_config).strip(), options.version)
        self.assertIn(f'__version__ = "{options.version}"', (self.clients / "python/kvrun.py").read_text())

    def test_the_library_exports_what_the_header_declares_and_no_more(self):
        header = re.sub(r"/\*.*?\*/", "", (self.clients / "c/kvrun.h").read_text(), flags=re.S)
        declared = set(re.findall(r"\b(kvrun_\w+)\(", header))
        exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", str(self.library)).splitlines()}
        self.assertEqual({name for name in exported if not name.startswith("__")}, declared)
        self.assertGreater(len(declared), 15)

    def test_python_is_that_of_3_9(self):
        code = "import ast, sys; ast.parse(open(sys.argv[1]).read(), feature_version=(3, 9))"
        run(sys.executable, "-c", code, str(self.clients / "python/kvrun.py"))

    def test_the_header_is_fit_for_other_compilers(self):
        program = self.prefix / "header"
        program.with_suffix(".c").write_text("#include <kvrun.h>\nint main(void) { return kvrun_version()[0] != '0'; }\n")
        run(options.cc, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", str(program.with_suffix(".c")), "-o",
            str(program), *options.cc_flags, *self.flags("--cflags", "--libs"))
        run(str(program), LD_LIBRARY_PATH=str(self.library.parent))
        if shutil.which("c++"):
            shutil.copy(program.with_suffix(".c"), program.with_suffix(".cc"))
            run("c++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(program.with_suffix(".cc")), *self.flags("--cflags"))


class Examples(Prefix):
    """Against one server. What a program of the one language stored, the other finds."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = rig.Server()
        cls.addClassCleanup(cls.server.remove)
        cls.key = cls.prefix / "key"
        cls.key.write_text(cls.server.key(cls.server.tenant("examples"), "engine") + "\n")
        about = cls.server.call("GET", "/version").json()
        cls.arguments = [about["engine_socket"], about["fd_socket"], str(cls.key)]

    def check(self, output):
        self.assertIn("4 of 4 blocks are stored", output)
        self.assertIn("4 of 4 blocks came back", output)
        self.assertIn("their bytes are the same", output)
        self.assertIn("2 calls answered, 0 missed", output)

    def compiled(self, *flags):
        program = self.prefix / "connector"
        run(options.cc, "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
            str(self.clients / "examples/connector.c"), "-o", str(program), *options.cc_flags, *flags)
        return program

    def test_c_with_the_shared_library(self):
        program = self.compiled(*self.flags("--cflags", "--libs"))
        self.check(run(str(program), *self.arguments, LD_LIBRARY_PATH=str(self.library.parent)))

    def test_c_with_the_static_library(self):
        others = run("pkg-config", "--libs", "libcurl", "jansson").split()  # what it needs, from shared libraries
        flags = [flag.replace("-lkvrun", "-l:libkvrun.a") for flag in self.flags("--cflags", "--libs")] + others
        self.check(run(str(self.compiled(*flags)), *self.arguments))

    def test_python(self):
        where = str(next(self.prefix.rglob("kvrun.py")).parent)
        self.check(run(sys.executable, str(self.clients / "examples/connector.py"), *self.arguments, PYTHONPATH=where))

    def test_a_connector_without_a_server_computes_everything_itself(self):
        where = str(next(self.prefix.rglob("kvrun.py")).parent)
        nowhere = [str(self.prefix / "none"), str(self.prefix / "none-fd"), str(self.key)]
        ended = subprocess.run([sys.executable, str(self.clients / "examples/connector.py"), *nowhere], text=True,
                               capture_output=True, env={**os.environ, "PYTHONPATH": where})
        self.assertIn("kvrun.Error: down", ended.stderr, "registering does not fail, opening a session does")


def main():
    global options
    parser = argparse.ArgumentParser()
    for name in ("kvrun", "build", "source", "cmake", "cc", "version"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--cc-flags", type=str.split, default=[])
    parser.add_argument("--jobs", help="of the runner; this is one job")
    options = parser.parse_args()
    if not rig.postgres_is_here() or not shutil.which("pkg-config"):
        print("PostgreSQL's programs or pkg-config are not installed", file=sys.stderr)
        sys.exit(rig.SKIP)
    rig.options = argparse.Namespace(kvrun=options.kvrun, prism=None)
    rig.contract = rig.Contract(options.source)
    unittest.main(argv=[sys.argv[0]], verbosity=1)


main()
