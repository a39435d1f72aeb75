#!/bin/sh
# Brings the tools of package.json to TARGET_DIR (default build/spec of this checkout), by npm, exactly as package-lock.json has them.
# Exit codes: 0 there, 3 npm cannot deliver here (what needs the tools is then skipped).
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1
target=${1:-${here%/tests/spec}/build/spec}
stamp=$(cat "$here/package.json" "$here/package-lock.json" | sha256sum)
[ "$(cat "$target/stamp" 2>/dev/null)" != "$stamp" ] || exit 0
command -v npm >/dev/null 2>&1 || { echo "fetch.sh: npm is not installed" >&2; exit 3; }
mkdir -p "$target" && cp "$here/package.json" "$here/package-lock.json" "$target/" || exit 1
export npm_config_fetch_retries=1 npm_config_fetch_retry_mintimeout=1000 npm_config_fetch_timeout=30000 npm_config_update_notifier=false
if ! (cd "$target" && timeout 300 npm ci --silent --ignore-scripts --no-audit --no-fund >npm.log 2>&1); then
    echo "fetch.sh: npm ci did not deliver the tools of tests/spec; see $target/npm.log" >&2
    exit 3
fi
echo "$stamp" >"$target/stamp"
