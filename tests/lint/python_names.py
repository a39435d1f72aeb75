#!/usr/bin/env python3
"""No function, class or method is defined twice in a Python file: python_names.py ROOT, or --self-test.

The later one takes the place of the earlier without a word, and a test then asks something else than it seems to.
"""
import ast
import subprocess
import sys
from pathlib import Path

KINDS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def twice(body, inside=""):
    """(line, name) of what takes a name that was taken. What has a decorator may: a property's setter does."""
    seen = set()
    for node in body:
        if isinstance(node, KINDS) and not node.decorator_list:
            if node.name in seen:
                yield node.lineno, inside + node.name
            seen.add(node.name)
        if isinstance(node, ast.ClassDef):
            yield from twice(node.body, node.name + ".")


def self_test():
    found = twice(ast.parse("def a(): 0\nclass b:\n def c(): 0\n def c(): 0\n def a(): 0\ndef a(): 0").body)
    assert list(found) == [(4, "b.c"), (6, "a")]


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    root = Path(sys.argv[1])
    files = subprocess.run([Path(__file__).with_name("files.sh"), root, r"\.py$"], capture_output=True, text=True, check=True)
    found = [f"{path}:{line}: {name} is defined a second time" for path in files.stdout.splitlines()
             for line, name in twice(ast.parse((root / path).read_text()).body)]
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
