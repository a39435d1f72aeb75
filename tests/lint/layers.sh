#!/bin/sh
# The ladder of includes, as layers.awk has it: layers.sh ROOT, or layers.sh --self-test, which plants one violation of
# each kind and demands that each is found, and that a clean file is not.
set -eu
lint=$(cd "$(dirname "$0")" && pwd)

check() { # root: the product's C files; what tests include is their own business
    cd "$1"
    "$lint/files.sh" . '\.(c|h|def)$' | grep -v '^tests/' | xargs awk -f "$lint/layers.awk"
}

if [ "$1" != --self-test ]; then
    check "$1"
    exit
fi

tree=$(mktemp -d "${TMPDIR:-/tmp}/kvlint.XXXXXX")
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/dataplane/tier" "$tree/dataplane/base" "$tree/server/http" "$tree/extra"
try() { # file, line, expected result
    printf '%s\n' "$2" >"$tree/$1"
    result=0
    (cd "$tree" && awk -f "$lint/layers.awk" "$1") >/dev/null || result=$?
    rm "$tree/$1"
    [ "$result" -eq "$3" ] || { echo "self-test: $1 with $2: $result, expected $3" >&2; exit 1; }
}
try dataplane/tier/a.c '#include "dataplane/base/err.h"' 0
try dataplane/tier/a.c '#include "dataplane/tier/own_int.h"' 0
try dataplane/tier/a.c '#include <stdio.h>' 0
try dataplane/tier/a.c '#include "dataplane/crypto/secret.h"' 1
try dataplane/tier/a.c '#include "dataplane/keys/keyring.h"' 1
try dataplane/base/a.h '#include "dataplane/io/io.h"' 1
try dataplane/base/a.c '#  include "dataplane/io/io.h"' 1
try dataplane/base/a.c '#include "tests/lib/vectors.h"' 1
try dataplane/base/a.c '#include "err.h"' 1
try server/http/a.c '#include "server/service/svc.h"' 0
try server/http/a.c '#include "server/service/svc_int.h"' 1
try server/http/a.c '#include "server/store/pg.h"' 1
try server/http/a.c '#include <microhttpd.h>' 1
try server/http/httpd.c '#include <microhttpd.h>' 0
try server/http/a.c '#include <openssl/evp.h>' 1
try extra/a.c '#include "dataplane/base/err.h"' 1
try server/main.c '#include "server/store/pg.h"' 0
