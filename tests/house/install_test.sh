#!/usr/bin/env bash
# install_test.sh SOURCE_FOLDER: what .ci/install says and does, on a PATH that holds only tools made here. Nothing is installed.
set -euo pipefail
source=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/kvhouse.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
bash=$(command -v bash)
for tool in bash uname ls awk mktemp rm tail; do
    ln -s "$(command -v "$tool")" "$work/bin/$tool"
done

# tool NAME: its text comes from standard input.
tool() { { echo "#!$bash"; cat; } >"$work/bin/$1"; chmod +x "$work/bin/$1"; }
# install GROUP…: runs it; $status, $said and what apt-get was asked are then there.
install() {
    rm -f "$work/apt"
    status=0
    said=$(PATH="$work/bin" APT_ASKED="$work/apt" "$bash" "$source/.ci/install" "$@" 2>&1) || status=$?
}
fail() { echo "$1; exit code $status, it said:"; echo "$said"; exit 1; }
asked() { [ -f "$work/apt" ]; }

# Neither apt-get nor dpkg-query nor any library: everything is named, by its Debian name.
echo 'echo 1000' | tool id
install build
[ "$status" -eq 2 ] || fail "without anything it must exit with 2"
for package in gcc cmake libjansson-dev libssl-dev postgresql; do
    grep -qw -- "$package" <<<"$said" || fail "it does not name $package"
done
! grep -q 'command not found' <<<"$said" || fail "it stumbles over what is missing"

# Control: where all of it is there it says nothing.
echo 'echo installed' | tool dpkg-query
install build test
{ [ "$status" -eq 0 ] && [ -z "$said" ]; } || fail "with everything there it must be silent"

# One package missing, no root: exactly that one, the command that brings it, and apt-get is left alone.
tool dpkg-query <<'T'
[ "${*: -1}" = libjansson-dev ] || echo installed
T
tool apt-get <<'T'
echo "$@" >>"$APT_ASKED"
[ -z "${APT_FAILS:-}" ] || { echo "E: no such archive"; exit 100; }
T
install build
[ "$status" -eq 2 ] || fail "with a package missing and no root it must exit with 2"
[ "$(head -n 1 <<<"$said")" = "missing packages: libjansson-dev" ] || fail "it must name what is missing and nothing else"
grep -qx 'as root: apt-get install --no-install-recommends libjansson-dev' <<<"$said" || fail "it must say how to get it"
! asked || fail "it must not call apt-get without root"

# The same as root: apt-get is asked for just that.
echo 'echo 0' | tool id
install build
[ "$status" -eq 0 ] || fail "as root it must install"
grep -qE 'install .*--no-install-recommends libjansson-dev$' "$work/apt" || fail "apt-get was asked for something else: $(cat "$work/apt")"

# apt-get fails: its words are shown, and it is 2.
export APT_FAILS=1
install build
[ "$status" -eq 2 ] || fail "where apt-get fails it must exit with 2"
grep -q 'E: no such archive' <<<"$said" || fail "apt-get's words are not shown"
grep -q 'install these by hand: libjansson-dev' <<<"$said" || fail "it must say what to do"
unset APT_FAILS

install bulid
[ "$status" -eq 2 ] || fail "an unknown group must exit with 2"
echo "install ok"
