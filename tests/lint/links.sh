#!/bin/sh
# What a library may not even ask the linker for: links.sh NM CC LIBRARY…
# The table says which symbols, by the library's name. A library that is not built is an error: then the test proves
# nothing. The control compiles a file that breaks the rule and demands that it is found.
set -eu
nm=$1 cc=$2
shift 2

# library, symbols, why
table='dataplane_tier ^kv_(secret|sealed|keyring|ktree|roe)_ a_tier_sees_sealed_bytes_only
dataplane_io ^kv_(secret|sealed|keyring|ktree|roe)_ io_moves_bytes_and_knows_no_key
dataplane_base ^(EVP|OSSL|json|PQ|MHD|curl|io_uring)_? base_stands_alone
dataplane_engine ^(json|PQ|MHD|curl_)_? the_engine_knows_no_database_JSON_or_HTTP
dataplane_keys ^(json|PQ|MHD|curl_)_? keys_know_no_database_JSON_or_HTTP
kvrun ^(kv_|EVP|OSSL|PQ|MHD|gnutls_) the_client_contains_no_server
audit ^(PQ|MHD|curl_|kv_(engine|pg|store|svc|http)_) the_verifier_contains_no_server
server_service ^(PQ|MHD_|json_) the_service_speaks_no_protocol
server_http ^PQ the_database_has_its_own_storey'

check() { # name, file
    result=0
    while read -r library symbols why; do
        [ "$library" = "$1" ] || continue
        wanted=$("$nm" -u "$2" | awk 'NF == 2 { print $2 }' | sort -u | grep -E -- "$symbols") || continue
        printf '%s needs %s: %s\n' "$2" "$(echo "$wanted" | tr '\n' ' ')" "$(echo "$why" | tr _ ' ')" >&2
        result=1
    done <<TABLE
$table
TABLE
    return $result
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/kvlint.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
printf 'void kv_secret_free(void *); void planted(void); void planted(void) { kv_secret_free(0); }\n' >"$scratch/bad.c"
printf 'void kv_io_free(void *); void fine(void); void fine(void) { kv_io_free(0); }\n' >"$scratch/good.c"
"$cc" -c "$scratch/bad.c" -o "$scratch/bad.o"
"$cc" -c "$scratch/good.c" -o "$scratch/good.o"
if check dataplane_tier "$scratch/bad.o" >/dev/null 2>&1; then
    echo "control: a planted use of kv_secret_free was not found" >&2
    exit 1
fi
check dataplane_tier "$scratch/good.o" || { echo "control: a clean object was refused" >&2; exit 1; }

failed=0
for file; do
    [ -f "$file" ] || { echo "$file is not built; build everything first" >&2; exit 77; }
    name=$(basename "$file" .a)
    check "${name#lib}" "$file" || failed=1
done
exit $failed
