#!/bin/sh
# Brings the prebuilt llama.cpp libraries and the headers of exactly their version to TARGET_DIR, through the npm client alone.
#   fetch.sh [TARGET_DIR]        default: build/llama of this checkout
# TARGET_DIR/include, TARGET_DIR/lib, TARGET_DIR/LICENSE; TARGET_DIR/stamp says what is there, and a second run ends at once.
# Exit codes: 0 there, 3 npm cannot deliver here (the build then uses the simulated engine), 1 what came is not what was pinned.
# Where npm answers nothing it takes at most some 2 minutes; without a network a second.
# It must never run a package's scripts and never write into the source tree.
set -u
case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
here=$(CDPATH='' cd -- "$here" && pwd) || exit 1
target=${1:-${here%/tests/engine}/build/llama}
case $target in /*) ;; *) target=$PWD/$target ;; esac

package=node-llama-cpp
version=3.22.1
header_sha512=bltIipuWmc123H7tMIgDGKSsSrhmhlQYeVUC48XTjVW7XGJJiJJyCdlTMzQ/LiWoPkGDpcL4FviDpgw7qfTiDw==
stamp="$package $version $header_sha512 layout 1"

unavailable() {
    echo "fetch.sh: $1; without it kvrun-engine has the simulated engine only" >&2
    exit 3
}
refuse() {
    echo "fetch.sh: $1" >&2
    exit 1
}

if [ -f "$target/stamp" ]; then
    read -r present <"$target/stamp" || present=unfinished
    [ "$present" != "$stamp" ] || exit 0
fi
for tool in npm git tar openssl; do
    command -v "$tool" >/dev/null 2>&1 || unavailable "$tool is not installed (llama.cpp comes by it)"
done
[ "$(uname -sm)" = "Linux x86_64" ] || unavailable "the libraries are for Linux on x86-64 only"

work=$(mktemp -d "${TMPDIR:-/tmp}/kvllama.XXXXXX") || refuse "no temporary folder; set TMPDIR to one that you may write"
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Bounded: no retries that grow, and an end to all of it. Where the home folder cannot be written the cache is here.
export npm_config_fetch_retries=1 npm_config_fetch_retry_mintimeout=1000 npm_config_fetch_timeout=30000 npm_config_update_notifier=false
[ -w "${HOME:-/nonexistent}" ] || export npm_config_cache="$work/cache"
limit=$(command -v timeout >/dev/null 2>&1 && echo "timeout --foreground 120" || true)

cp "$here/package.json" "$here/package-lock.json" "$work/" || refuse "package.json is not beside fetch.sh"
cd "$work" || exit 1
$limit npm ci --silent --ignore-scripts --no-audit --no-fund >npm.log 2>&1 || unavailable "npm ci did not deliver the libraries"
$limit npm pack --silent --ignore-scripts "$package@$version" >>npm.log 2>&1 || unavailable "npm pack did not deliver the headers"

# npm ci has checked the libraries against package-lock.json; a packed archive has to be checked here.
archive="$package-$version.tgz"
found=$(openssl dgst -sha512 -binary "$archive" | openssl base64 -A)
[ "$found" = "$header_sha512" ] || refuse "$archive is not the pinned one: its SHA-512 is $found"

tar -xzf "$archive" package/llama/gitRelease.bundle || refuse "$archive holds no llama/gitRelease.bundle"
unset GIT_DIR GIT_INDEX_FILE GIT_WORK_TREE
if ! { git init -q headers && git -C headers fetch -q ../package/llama/gitRelease.bundle HEAD &&
    git -C headers archive FETCH_HEAD include ggml/include LICENSE | tar -x -C headers; }; then
    refuse "the header bundle cannot be read"
fi

bins=node_modules/@node-llama-cpp/linux-x64/bins/linux-x64
mkdir -p "$work/new/include" "$work/new/lib" || exit 1
cp headers/include/*.h headers/ggml/include/*.h "$work/new/include/" || refuse "headers are missing in the bundle"
cp -P "$bins"/*.so* "$work/new/lib/" || refuse "libraries are missing in the package"
cp headers/LICENSE "$work/new/LICENSE" || refuse "the licence is missing in the bundle"

# The folder appears whole or not at all, and only a folder of ours (it has a stamp) or an empty one is replaced.
printf '%s\n' "$stamp" >"$work/new/stamp" || exit 1
if [ -e "$target" ] && [ ! -f "$target/stamp" ] && ! rmdir "$target" 2>/dev/null; then
    refuse "$target exists and was not made by this script; name another folder"
fi
rm -rf "$target.new"
if ! { mkdir -p "$(dirname -- "$target")" && cp -RP "$work/new" "$target.new"; }; then
    refuse "cannot write $target.new"
fi
if [ -e "$target" ]; then
    rm -rf "${target:?}"
fi
mv "$target.new" "$target" || refuse "cannot write to $target"
echo "fetch.sh: llama.cpp libraries are in $target"
