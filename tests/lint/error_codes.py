#!/usr/bin/env python3
"""The registry of errors and the HTTP contract name the same codes: error_codes.py ROOT, or --self-test.

The list in api/openapi.yaml is the enum that has `session_erased` in it. Skips while the contract has no such list.
"""
import re
import sys
from pathlib import Path

SKIP = 77


def registry(text):
    return {name.lower() for name in re.findall(r"^KV_ERROR\((\w+)", text, re.M)}


def enums(text):
    """Every enum of the document, in flow form ([a, b]) or in block form (one a line)."""
    for body in re.findall(r"enum:\s*\[([^\]]*)\]", text):
        yield re.findall(r"[\w-]+", re.sub(r"#[^\n]*", "", body))
    for body in re.findall(r"enum:[ \t]*(?:#[^\n]*)?\n((?:[ \t]*-[^\n]*\n?|[ \t]*#[^\n]*\n)+)", text):
        yield re.findall(r"^[ \t]*-[ \t]*[\"']?([\w-]+)", body, re.M)


def code_enum(text):
    return next((set(values) for values in enums(text) if "session_erased" in values), None)


def self_test():
    flow = "code:\n  enum: [not_found, # why\n    session_erased]\nother:\n  enum: [a, b]\n"
    block = "code:\n  type: string\n  enum:\n    - not_found\n    # why\n    - session_erased\nother: 1\n"
    assert code_enum(flow) == code_enum(block) == {"not_found", "session_erased"}
    assert code_enum("x:\n  enum: [a, b]\n") is None
    assert registry('/* KV_ERROR(X) */\nKV_ERROR(NOT_FOUND,  404)\nKV_ERROR(A, 1)\n') == {"not_found", "a"}


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    root = Path(sys.argv[1])
    ours = registry((root / "api/errors.def").read_text())
    theirs = code_enum((root / "api/openapi.yaml").read_text())
    assert len(ours) > 40, "api/errors.def was not understood"
    if theirs is None:
        print("api/openapi.yaml has no enum of codes yet")
        return SKIP
    for name in sorted(ours - theirs):
        print(f"api/openapi.yaml: its enum of codes lacks {name}", file=sys.stderr)
    for name in sorted(theirs - ours):
        print(f"api/openapi.yaml: {name} is no row of api/errors.def", file=sys.stderr)
    return 1 if ours != theirs else 0


sys.exit(main())
