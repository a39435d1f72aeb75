#!/usr/bin/env python3
"""The table of transactions holds those that there are and nothing else: transactions.py ROOT, or --self-test.

What is not in it does not compile; this finds what is in it and no longer anywhere else, and names that say something
else than their row.
"""
import re
import sys
from pathlib import Path

from c_text import code_of

TABLE = "server/store/tx.def"


def findings(table, sources):
    """`sources`: texts by path, without the table."""
    rows = re.findall(r'^KV_TX\((\w+), "([^"]*)"\)$', table, re.M)
    if len(rows) != len(re.findall(r"^KV_TX\(", table, re.M)) or not rows:
        yield f"{TABLE}: a row was not understood"
    names = [name for _, name in rows]
    if names != sorted(set(names)):
        yield f"{TABLE}: the rows are not in order of their names"
    used = set()
    for text in sources.values():
        used |= set(re.findall(r"\bKV_TX_(\w+)\b", code_of(text)))
    for identifier, name in rows:
        if identifier != name.upper().replace("-", "_"):
            yield f"{TABLE}: {identifier} is called {name}"
        if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name):
            yield f"{TABLE}: {name} is no name of words"
        if identifier not in used:
            yield f"{TABLE}: nothing runs the transaction {name}"


def self_test():
    table, source = 'KV_TX(A_B, "a-b")\nKV_TX(C, "c")\n', {"x.c": "kv_pg_tx(pg, KV_TX_A_B, f); svc_tx(call, KV_TX_C, f);"}
    assert not list(findings(table, source))
    for bad in ('KV_TX(C, "c")\nKV_TX(A_B, "a-b")\n', 'KV_TX(A_B, "a-c")\nKV_TX(C, "c")\n', table + 'KV_TX(D, "d")\n',
                'KV_TX(A_B, "a-b")\nKV_TX(C , "c")\n', table + 'KV_TX(C, "c")\n', ""):
        assert list(findings(bad, source)), bad
    assert list(findings(table, {"x.c": "kv_pg_tx(pg, KV_TX_A_B, f); /* KV_TX_C */"}))


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    root = Path(sys.argv[1])
    sources = {str(path): path.read_text() for path in (root / "server").rglob("*.c")}
    found = list(findings((root / TABLE).read_text(), sources))
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


sys.exit(main())
