#!/bin/sh
# Verifies an erasure certificate with openssl, jq and coreutils alone: the same steps as kv-verify, by other people's programs.
#   verify-with-openssl.sh FILE KEYS_DIR           KEYS_DIR holds jwks.json and log.vkey, got from somewhere you trust
#   verify-with-openssl.sh FILE KEYS_DIR CERTIFICATE   FILE is the statement that follows this certificate; both are checked
#   verify-with-openssl.sh --inclusion JSON...     only the inclusion proof, over test vectors
# Exit status: 0 valid, 1 not valid, 2 wrong use, unreadable, or a program is missing.
# Strict: one spelling of every number and every base64 text, nothing unknown, nothing after the end.
# "A && B || fail" is meant so: fail ends the program. Nothing writes the files that pipelines compare.
# shellcheck disable=SC2015,SC2094
set -u
LC_ALL=C
export LC_ALL
umask 077

stop() { printf '%s\n' "verify-with-openssl: $1" >&2; exit 2; }
fail() { printf 'FAIL %-10s %s\nnot valid\n' "$1" "$2"; exit 1; }
ok() { printf 'ok   %-10s %s\n' "$1" "$2"; }

for program in openssl jq base64 basenc cmp; do
    command -v "$program" >/dev/null 2>&1 || stop "needs $program"
done
t=$(mktemp -d "${TMPDIR:-/tmp}/kvverify.XXXXXX") || stop "cannot make a temporary folder"
trap 'rm -rf "$t"' EXIT
trap 'exit 2' HUP INT TERM

sha256() { openssl dgst -sha256 -binary; }
bytes_of() { wc -c <"$1" | tr -d ' '; }

# Decimal, no sign, no leading zero, below 2^53: larger numbers are rounded by jq.
is_number() {
    case $1 in
    '' | *[!0-9]*) return 1 ;;
    0) return 0 ;;
    0*) return 1 ;;
    esac
    [ "${#1}" -le 16 ] && [ "$1" -lt 9007199254740992 ]
}

# decode64 TEXT OUT: standard base64 in its one spelling.
decode64() {
    printf '%s' "$1" | base64 -d >"$2" 2>/dev/null || return 1
    [ "$(base64 -w0 <"$2")" = "$1" ]
}

# decode64url IN_FILE OUT: the same for base64url without padding, from a file.
decode64url() {
    case $(($(bytes_of "$1") % 4)) in
    0) pad= ;;
    2) pad='==' ;;
    3) pad='=' ;;
    *) return 1 ;;
    esac
    { cat "$1"; printf '%s' "$pad"; } | basenc --base64url -d >"$2" 2>/dev/null || return 1
    basenc --base64url -w0 <"$2" | tr -d '=' | cmp -s - "$1"
}

# decode_hash TEXT OUT: base64 of exactly 32 bytes.
decode_hash() { decode64 "$1" "$2" && [ "$(bytes_of "$2")" -eq 32 ]; }

# inclusion INDEX SIZE: leaf hash in $t/hash, root in $t/root, one base64 element a line in $t/proof (RFC 9162, 2.1.3.2).
inclusion() {
    is_number "$1" && is_number "$2" && [ "$1" -lt "$2" ] || return 1
    node=$1
    last=$(($2 - 1))
    while IFS= read -r element; do
        [ "$last" -gt 0 ] && decode_hash "$element" "$t/element" || return 1
        if [ $((node % 2)) -eq 1 ] || [ "$node" -eq "$last" ]; then
            { printf '\001'; cat "$t/element" "$t/hash"; } | sha256 >"$t/next" || return 1
            while [ $((node % 2)) -eq 0 ] && [ "$node" -ne 0 ]; do
                node=$((node / 2))
                last=$((last / 2))
            done
        else
            { printf '\001'; cat "$t/hash" "$t/element"; } | sha256 >"$t/next" || return 1
        fi
        mv "$t/next" "$t/hash"
        node=$((node / 2))
        last=$((last / 2))
    done <"$t/proof"
    [ "$last" -eq 0 ] && cmp -s "$t/hash" "$t/root"
}

# ed25519 RAW_PUBLIC MESSAGE SIGNATURE
ed25519() {
    [ "$(bytes_of "$1")" -eq 32 ] && [ "$(bytes_of "$3")" -eq 64 ] || return 1
    { printf '\060\052\060\005\006\003\053\145\160\003\041\000'; cat "$1"; } >"$t/der"
    openssl pkey -pubin -inform DER -in "$t/der" -out "$t/pem" 2>/dev/null || return 1
    openssl pkeyutl -verify -pubin -inkey "$t/pem" -rawin -in "$2" -sigfile "$3" >/dev/null 2>&1
}

if [ "${1-}" = --inclusion ]; then
    shift
    bad=0
    for vector in "$@"; do
        jq -r '.leafHash, .root, .leafIdx, .treeSize, .proof[]?' "$vector" >"$t/fields" || stop "cannot read $vector"
        sed -n '5,$p' "$t/fields" >"$t/proof"
        if decode_hash "$(sed -n 1p "$t/fields")" "$t/hash" && decode_hash "$(sed -n 2p "$t/fields")" "$t/root" &&
            inclusion "$(sed -n 3p "$t/fields")" "$(sed -n 4p "$t/fields")"; then
            printf 'ok   %s\n' "$vector"
        else
            printf 'FAIL %s\n' "$vector"
            bad=1
        fi
    done
    exit "$bad"
fi

[ $# -eq 2 ] || [ $# -eq 3 ] || stop "usage: verify-with-openssl.sh FILE KEYS_DIR [CERTIFICATE]"
file=$1
keys=$2
certificate=${3-}
[ -r "$file" ] || stop "cannot read $file"
[ -r "$keys/jwks.json" ] && [ -r "$keys/log.vkey" ] || stop "no jwks.json and log.vkey in $keys"

# form: the lines of the bundle.
[ "$(bytes_of "$file")" -le 262144 ] || fail form "longer than 262144 bytes"
tr -d '\000-\011\013-\037\177' <"$file" | cmp -s - "$file" || fail form "control characters"
[ -s "$file" ] && [ "$(tail -c 1 "$file" | wc -l)" -eq 1 ] || fail form "does not end with a line"
[ "$(sed -n 1p "$file")" = c2sp.org/tlog-proof@v1 ] || fail form "the first line is not c2sp.org/tlog-proof@v1"
extra=$(sed -n 2p "$file")
[ "${extra#extra }" != "$extra" ] || fail form "the second line is not extra"
index=$(sed -n 3p "$file")
[ "${index#index }" != "$index" ] || fail form "the third line is not index"
index=${index#index }
is_number "$index" || fail form "the index is not a number below 2^53"
blank=$(sed -n '4,$p' "$file" | grep -n -m 1 '^$' | cut -d: -f1)
[ -n "$blank" ] && [ "$blank" -le 65 ] || fail form "the proof does not end with an empty line"
sed -n '4,$p' "$file" | head -n $((blank - 1)) >"$t/proof"
while IFS= read -r element; do
    decode_hash "$element" "$t/element" || fail form "a line of the proof is not base64 of 32 bytes"
done <"$t/proof"
sed -n "$((blank + 4)),\$p" "$file" >"$t/note"
head -n 3 "$t/note" >"$t/body"
origin=$(sed -n 1p "$t/note")
size=$(sed -n 2p "$t/note")
is_number "$size" || fail form "the size is not a number below 2^53"
decode_hash "$(sed -n 3p "$t/note")" "$t/root" || fail form "the root is not base64 of 32 bytes"
[ "$(wc -l <"$t/note")" -ge 5 ] && [ -z "$(sed -n 4p "$t/note")" ] || fail form "the checkpoint has no signatures"
case $origin in '' | *' '* | *+*) fail form "the origin is not a name" ;; esac
dash=$(printf '\342\200\224')
sed -n '5,$p' "$t/note" >"$t/lines"
while IFS= read -r line; do
    rest=${line#"$dash "}
    [ "$rest" != "$line" ] || fail form "an unknown line after the checkpoint"
    name=${rest%% *}
    [ -n "$name" ] && [ "$name" != "$rest" ] || fail form "a signature line without its parts"
    decode64 "${rest#* }" "$t/element" && [ "$(bytes_of "$t/element")" -gt 4 ] || fail form "a signature is not base64"
done <"$t/lines"

# form: the JWS in the extra line.
decode64 "${extra#extra }" "$t/jws" && [ "$(bytes_of "$t/jws")" -le 65535 ] || fail form "extra is not base64"
[ "$(tr -cd '.' <"$t/jws" | wc -c)" -eq 2 ] && [ "$(tr -d 'A-Za-z0-9_.-' <"$t/jws" | wc -c)" -eq 0 ] ||
    fail form "extra is not a compact JWS"
for part in 1 2 3; do
    cut -d. -f$part <"$t/jws" | tr -d '\n' >"$t/part$part"
    decode64url "$t/part$part" "$t/decoded$part" || fail form "part $part of the JWS is not base64url"
done
[ "$(bytes_of "$t/decoded3")" -eq 64 ] || fail form "the JWS signature is not 64 bytes"
ok form c2sp.org/tlog-proof@v1

# header: exactly one of two texts, and a key that is pinned.
kid=$(jq -r '.kid | strings' "$t/decoded1" 2>/dev/null)
{ [ -n "$kid" ] && [ "$(printf '%s' "$kid" | tr -d 'A-Za-z0-9_-')" = '' ]; } || fail header "names no key"
typ=kvrun-erasure+jws
if grep -q '"kvrun-erasure-upgrade+jws"' "$t/decoded1"; then typ=kvrun-erasure-upgrade+jws; fi
header_is() { printf '{"alg":"%s","kid":"%s","typ":"%s"}' "$1" "$kid" "$typ" | cmp -s - "$t/decoded1"; }
header_is EdDSA || header_is Ed25519 || fail header "alg, kid and typ are not exactly what they have to be"
x=$(jq -r --arg kid "$kid" '[.keys[] | select(.kty == "OKP" and .crv == "Ed25519" and .kid == $kid and
    (has("revoked_at") | not))] | if length == 1 then .[0].x else empty end' "$keys/jwks.json" 2>/dev/null)
[ -n "$x" ] || fail header "names a key that is not in jwks.json"
printf '%s' "$x" >"$t/x"
decode64url "$t/x" "$t/cert.pub" && [ "$(bytes_of "$t/cert.pub")" -eq 32 ] || fail header "jwks.json has a broken key"
thumbprint=$(printf '{"crv":"Ed25519","kty":"OKP","x":"%s"}' "$x" | sha256 | basenc --base64url -w0 | tr -d '=')
[ "$thumbprint" = "$kid" ] || fail header "jwks.json has a key under another's name"
ok header "key $kid"

# signature: over the exact bytes.
{ cat "$t/part1"; printf .; cat "$t/part2"; } >"$t/signed"
ed25519 "$t/cert.pub" "$t/signed" "$t/decoded3" || fail signature "does not verify"
ok signature "Ed25519 over the exact bytes"

# canonical: jq and JCS agree inside the restricted profile, which the payload must not leave.
payload=$t/decoded2
[ "$(tr -d '\040-\176' <"$payload" | wc -c)" -eq 0 ] || fail canonical "not printable ASCII"
jq -e -s 'length == 1 and (.[0] | type) == "object"' "$payload" >/dev/null 2>&1 || fail canonical "not one JSON object"
jq -cjS . <"$payload" | cmp -s - "$payload" || fail canonical "the payload is not its own canonical form"
jq -e '([.. | numbers] | all(. < 9007199254740992 and (tostring | test("^(0|[1-9][0-9]*)$")))) and ([..] | all(. != null))' \
    "$payload" >/dev/null 2>&1 || fail canonical "outside of the restricted profile"
ok canonical "RFC 8785, restricted profile"

# claims: an erasure that succeeded, with limits; or that its ciphertext is gone.
if [ "$typ" = kvrun-erasure-upgrade+jws ]; then
    jq -e '.v == 1 and .ciphertext == "gone" and (.claim | startswith("Every instance that may have held blocks ")) and
        (.certificate.assurance | . == "E2" or . == "E3") and
        .assurance == (if .certificate.assurance == "E3" then "E4" else "E2" end) and (.confirmed | length) > 0 and
        (.confirmed | all(.tiers == (if has("folder") then "dram, nvme" else "dram" end))) and
        (.closed | all(.how == "acked" or .how == "ended")) and (.limits | length) > 0 and
        .lifted == (if (.closed | length) > 0 then ["L5"] else [] end) and ([.limits[].code] | all(. != "L5"))' \
        "$payload" >/dev/null 2>&1 || fail claims "do not describe ciphertext that is gone"
else
jq -e '(if has("anchor") then .v == 2 and (.anchor.root_id | test("^rot_")) else .v == 1 end) and (.assurance | test("^E[234]$")) and .sanitization.technique == "CE" and (.sub.kind | . == "session" or . == "scope" or . == "tenant") and
    (if has("shared") then .sub.kind == "session" and (.shared.erased | type) == "array" and (.shared.retained | type) == "array" and
        (.shared.erased + .shared.retained | length > 0 and all(.scope | test("^ses_"))) and
        ((.shared.retained | length) == 0 or ([.limits[].code] | index("L6") != null)) else true end) and
    .sanitization.claim == (if .assurance == "E2" then "clear" else "purge" end) and
    .destroyed.root_id != .destroyed.new_root_id and (.limits | length) > 0 and (.instances | length) > 0 and
    (.verification | .opened_after == 0 and .control_opened == .samples and .old_root_gone and .old_row_refused and
        .slots_absent and .result == (if .samples == 0 then "no_samples" else "passed" end))' "$payload" >/dev/null 2>&1 ||
    fail claims "do not describe an erasure that succeeded"
fi
ok claims "they go together"

# checkpoint: every line of the pinned log key verifies, and there is one.
IFS= read -r vkey <"$keys/log.vkey" || [ -n "$vkey" ] || stop "log.vkey is empty"
prefix=${vkey%%+*}
rest=${vkey#*+}
decode64 "${rest#*+}" "$t/typed" && [ "$(bytes_of "$t/typed")" -eq 33 ] || stop "log.vkey is not a verifier key"
printf '\001' >"$t/type"
head -c 1 "$t/typed" | cmp -s - "$t/type" || stop "log.vkey is not an Ed25519 key"
tail -c 32 "$t/typed" >"$t/log.pub"
case $origin in
"$prefix" | "$prefix"/*) ;;
*) fail checkpoint "signed for a log outside of $prefix" ;;
esac
{ printf '%s\n\001' "$origin"; cat "$t/log.pub"; } | sha256 | head -c 4 >"$t/id"
found=0
while IFS= read -r line; do
    rest=${line#"$dash "}
    [ "${rest%% *}" = "$origin" ] || continue
    decode64 "${rest#* }" "$t/line" || fail form "a signature is not base64"
    head -c 4 "$t/line" | cmp -s - "$t/id" || continue
    tail -c +5 "$t/line" >"$t/sig"
    ed25519 "$t/log.pub" "$t/body" "$t/sig" || fail checkpoint "the log's signature does not verify"
    found=1
done <"$t/lines"
[ "$found" -eq 1 ] || fail checkpoint "has no signature of the given log key"
ok checkpoint "size $size of $origin"

# inclusion: the leaf is the JWS.
{ printf '\000'; cat "$t/jws"; } | sha256 >"$t/hash"
inclusion "$index" "$size" || fail inclusion "leaf $index is not shown to be there"
ok inclusion "leaf $index"

# covers: request, destruction, certificate, in this order, in this log; or the certificate and its statement.
[ "$(jq -r .audit.origin "$payload")" = "$origin" ] || fail covers "the payload means another log"
if [ "$typ" = kvrun-erasure-upgrade+jws ]; then
    follows=$(jq -r '.audit.certificate_index | strings' "$payload")
    is_number "$follows" && [ "$follows" -lt "$index" ] || fail covers "the statement is older than its certificate"
    ok covers "certificate $follows"
    if [ -n "$certificate" ]; then
        sh "$0" "$certificate" "$keys" >/dev/null || fail follows "the certificate is not valid"
        sed -n 2p "$certificate" | cut -d' ' -f2 | base64 -d >"$t/of"
        [ "$(sed -n 3p "$certificate")" = "index $follows" ] || fail follows "the certificate is at another place of the log"
        [ "$(sha256 <"$t/of" | od -An -v -tx1 | tr -d ' \n')" = "$(jq -r .certificate.sha256 "$payload")" ] ||
            fail follows "the certificate it is about has other bytes"
        cut -d. -f2 <"$t/of" | tr -d '\n' >"$t/part"
        decode64url "$t/part" "$t/certificate.json" || fail follows "the certificate is not base64url"
        jq -e -n --slurpfile s "$payload" --slurpfile c "$t/certificate.json" '$s[0] as $s | $c[0] as $c |
            $s.certificate.id == $c.jti and $s.certificate.assurance == $c.assurance and $s.sub.kind == $c.sub.kind and
            $s.sub.tenant == $c.sub.tenant and $s.sub.session == $c.sub.session and $s.sub.sessions == $c.sub.sessions and
            $s.limits == [$c.limits[] | select(.code != "L5")] and
            ($s.lifted == [$c.limits[].code | select(. == "L5")]) and
            ([$s.closed[].id] | sort) == ([$c.instances[] | select(.how == "expired").id] | sort)' >/dev/null 2>&1 ||
            fail follows "it does not follow from the certificate"
        ok follows "it follows from the certificate"
    fi
    jq -r '"\nCiphertext gone (\(.assurance), stated at \(.iat)):\n  \(.claim)\nLimits:",
        (.limits[] | "  \(.code): \(.text)"), ""' "$payload"
    printf 'valid\n'
    exit 0
fi
[ -z "$certificate" ] || fail follows "this is a certificate, and follows none"
request=$(jq -r '.audit.request_index | strings' "$payload")
destroy=$(jq -r '.audit.destroy_index | strings' "$payload")
is_number "$request" && is_number "$destroy" && [ "$request" -lt "$destroy" ] && [ "$destroy" -lt "$index" ] ||
    fail covers "request, destruction and certificate are not in order"
ok covers "request $request, destruction $destroy"

jq -r '"\nClaim (\(.assurance), destroyed at \(.destroyed.at)):\n  \(.claim)\nLimits:",
    (.limits[] | "  \(.code): \(.text)"), ""' "$payload"
printf 'valid\n'
