#!/usr/bin/env python3
"""Calls that the product does not make: banned_calls.py ROOT, or --self-test.

malloc and its family are for dataplane/base/mem.c; the rest has a bounded or a thread-safe sibling.
"""
import re
import subprocess
import sys
from pathlib import Path

from c_text import code_of

BANNED = {
    "malloc": "kv_alloc", "calloc": "kv_alloc", "realloc": "kv_realloc_array", "reallocarray": "kv_realloc_array",
    "free": "kv_free", "strdup": "kv_strdup", "strndup": "kv_strdup", "asprintf": "kv_buf_printf",
    "aligned_alloc": "kv_alloc_aligned", "posix_memalign": "kv_alloc_aligned", "alloca": "kv_alloc",
    "strcpy": "snprintf", "stpcpy": "snprintf", "strcat": "kv_buf_text",
    "strncat": "kv_buf_text", "sprintf": "snprintf", "vsprintf": "vsnprintf", "gets": "fgets",
    "atoi": "strtol with a check", "atol": "strtol with a check", "atof": "strtod with a check",
    "strtok": "strsep", "rand": "struct kv_env", "srand": "struct kv_env", "random": "struct kv_env",
    "system": "posix_spawn", "popen": "posix_spawn", "tmpnam": "mkostemp", "mktemp": "mkostemp",
    "gmtime": "gmtime_r", "localtime": "localtime_r", "ctime": "kv_time_text",
}

# (file, word): why it may.
ALLOWED = {
    ("dataplane/base/mem.c", "calloc"): "the one allocator",
    ("dataplane/base/mem.c", "realloc"): "the one allocator",
    ("dataplane/base/mem.c", "posix_memalign"): "the one allocator",
    ("dataplane/base/mem.c", "free"): "the one allocator",
    ("api/clients/c/kvrun_memory.c", "calloc"): "the client contains nothing of the server, so it has an allocator of its own",
    ("api/clients/c/kvrun_memory.c", "realloc"): "the same",
    ("api/clients/c/kvrun_memory.c", "free"): "the same",
    ("server/wipe.c", "malloc"): "what wraps it", ("server/wipe.c", "realloc"): "what wraps it", ("server/wipe.c", "free"): "what wraps it",
}

# A member (->free, .free) or a longer name (kv_free) is not the C library's.
CALL = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(BANNED))


def findings(name, source):
    for number, line in enumerate(code_of(source).split("\n"), 1):
        for match in CALL.finditer(line):
            if (name, match.group(1)) not in ALLOWED:
                yield f"{name}:{number}: {match.group(1)}(): use {BANNED[match.group(1)]}"


def self_test():
    bad = ["p = malloc(3);", "free (p);", "if (atoi(s)) {}", "x(strcpy(a, b));", "system(\"ls\");"]
    good = ["/* malloc(3) */", "// free(p)", "s = \"strcpy(a)\";", "kv_free(p);", "ops->free(ctx);", "ops.free(ctx);",
            "/* a\n free(p)\n */", "c = '\"'; /* free(p) */", "snprintf(a, 1, \"\");", "int free_slots(void);"]
    for line in bad:
        assert list(findings("x.c", line)), line
    for line in good:
        assert not list(findings("x.c", line)), line
    assert not list(findings("dataplane/base/mem.c", "free(p);"))
    assert list(findings("dataplane/base/buf.c", "free(p);"))
    assert list(findings("x.c", "/* a\n\n */ free(p);"))[0].startswith("x.c:3:")


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    root = Path(sys.argv[1])
    listed = subprocess.run([Path(__file__).parent / "files.sh", root, r"\.(c|h|cu)$"], check=True,
                            capture_output=True, text=True).stdout.split("\n")
    names = [name for name in listed if name and not name.startswith("tests/")]
    assert "dataplane/base/mem.c" in names, "the list of files is not right"
    found = [line for name in names for line in findings(name, (root / name).read_text())]
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


sys.exit(main())
