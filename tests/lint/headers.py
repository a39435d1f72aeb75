#!/usr/bin/env python3
"""Rules of headers and heads of files: headers.py ROOT CC INCLUDE…, or headers.py --self-test CC.

Each header has a guard of its own and compiles alone; each file of the product says at its top what it is for.
"""
import re
import subprocess
import sys
from pathlib import Path

from c_text import code_of


def guard_of(source):
    """The guard's name, or None when the code is not wrapped in one."""
    lines = [line.strip() for line in code_of(source).split("\n") if line.strip()]
    if len(lines) < 3:
        return None
    opened = re.fullmatch(r"#ifndef (\w+)", lines[0])
    if not opened or lines[1] != f"#define {opened.group(1)}" or lines[-1] != "#endif":
        return None
    return opened.group(1)


def has_head(source):
    """A comment at the very top with at least a few words in it."""
    head = re.match(r"/\*(.*?)\*/", source, re.S)
    return head is not None and len(head.group(1).split()) >= 5


def compiles(name, cc, includes):
    flags = ["-std=gnu17", "-D_GNU_SOURCE", "-DKV_FAULTS", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    run = subprocess.run([cc, *flags, *(f"-I{path}" for path in includes), "-x", "c", "-"],
                         input=f'#include "{name}"\n#include "{name}"\n', capture_output=True, text=True)
    return "" if run.returncode == 0 else run.stderr.split("\n")[0]


def check(root, cc, includes):
    listed = subprocess.run([Path(__file__).parent / "files.sh", root, r"\.(c|h)$"], check=True,
                            capture_output=True, text=True).stdout.split("\n")
    guards = {}
    for name in filter(None, listed):
        source = (root / name).read_text()
        product = not name.startswith("tests/")
        if (product or name.endswith(".h")) and not has_head(source):
            yield f"{name}: no head comment that says what it is for"
        if not name.endswith(".h"):
            continue
        guard = guard_of(source)
        if guard is None:
            yield f"{name}: no include guard around the whole file"
        elif guard in guards:
            yield f"{name}: its guard {guard} is that of {guards[guard]}"
        else:
            guards[guard] = name
        # Headers of engines that are not part of the product need what only their own build brings along.
        error = compiles(name, cc, [root, *includes]) if product or name.startswith("tests/lib/") else ""
        if error:
            yield f"{name}: does not compile on its own: {error}"
    assert guards, "no header was found"


GOOD = "/*\n * What this is for, in five words.\n */\n#ifndef A_H\n#define A_H\nint a(void);\n#endif\n"


def self_test(cc):
    assert guard_of(GOOD) == "A_H" and has_head(GOOD)
    assert guard_of(GOOD.replace("#define A_H", "#define B_H")) is None
    assert guard_of(GOOD + "int after;\n") is None
    assert not has_head(GOOD.split("*/\n")[1])
    assert not has_head("/* a.h */\n")
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "good.h").write_text(GOOD)
        (Path(folder) / "bad.h").write_text(GOOD.replace("int a(void)", "uint32_t a(void)"))
        assert not compiles("good.h", cc, [folder])
        assert compiles("bad.h", cc, [folder])


def main():
    if sys.argv[1] == "--self-test":
        self_test(sys.argv[2])
        return 0
    found = list(check(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


sys.exit(main())
