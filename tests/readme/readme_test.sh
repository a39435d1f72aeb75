#!/usr/bin/env bash
# readme_test.sh BUILD_FOLDER SOURCE_FOLDER: runs each block of README.md that is marked as tested, in order, in a fresh folder with a server
# from `kvrun dev`. Anything that fails in a block fails the test; the last block is run once more on a certificate that was changed, and
# must fail then.
set -euo pipefail
build=$1 source=$2
for tool in jq curl openssl basenc; do
    command -v "$tool" >/dev/null || { echo "needs $tool"; exit 77; }
done
work=$(mktemp -d /tmp/kvreadme.XXXXXX)
chmod 711 "$work"
server=""
cleanup() {
    [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server"
    rm -rf "$work"
}
trap cleanup EXIT
cd "$work"
ln -s "$build" build
ln -s "$source/audit" audit

awk '/^<!-- tested: tests\/readme -->/ { want = 1; next } want && /^```sh/ { inside = 1; next } /^```/ { if (inside) { print "#--" } inside = 0; want = 0 }
     inside' "$source/README.md" | awk -v RS='#--\n' '{ printf "%s", $0 > ("block" NR ".sh") }'
[ -s block2.sh ] || { echo "README.md has no tested blocks"; exit 1; }

build/kvrun dev --http.listen=127.0.0.1:0 --http.admin_listen=127.0.0.1:0 >dev.out 2>dev.log &
server=$!
for _ in $(seq 600); do
    grep -q '"event":"ready"' dev.log && break
    kill -0 "$server" || { cat dev.log; exit 1; }
    sleep 0.1
done
KVRUN_ADDR=127.0.0.1:$(grep -o '"port":[0-9]*' dev.log | head -n 1 | cut -d: -f2)
export KVRUN_ADDR
grep -q '^operator key: kvrun_live_' dev.out || { echo "dev did not print the key"; exit 1; }

# Without pipefail: the tour's last request is refused, and its body is the point.
bash -eu block1.sh | tee tour.out
grep -q '"code":"session_erased"' tour.out
grep -q 'logits identical' tour.out
bash -euo pipefail block2.sh >verify.out
grep -q 'Signature Verified Successfully' verify.out
grep -q '^valid$' verify.out

echo "the interface by curl, and by the command line"
bash -euo pipefail block3.sh >curl.out
grep -q '"code":"session_erased","status":410' curl.out
grep -q '"decision":"allow"' curl.out
bash -euo pipefail block4.sh >cli.out 2>cli.err
grep -q 'session_erased' cli.err
grep -q '^valid$' cli.out

echo "control: a changed certificate is refused"
sed 's/^index [0-9]*/index 0/' certificate/certificate.txt >certificate/changed && mv certificate/changed certificate/certificate.txt
if audit/verify-with-openssl.sh certificate/certificate.txt certificate >/dev/null 2>&1 || build/kv-verify certificate/certificate.txt >/dev/null; then
    echo "a changed certificate passed"
    exit 1
fi
echo "readme ok"
