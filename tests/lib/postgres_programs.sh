#!/bin/sh
# postgres_programs.sh FOLDER: PostgreSQL's programs with an initdb that copies a cluster made once, because making one takes longer than many
# a test. FOLDER/bin is what a server finds when it is first on PATH (by pg_config) or named by KV_TEST_POSTGRES_BIN. What is asked for in
# other words than the server's own goes to the real initdb, and so do the tests that start a server without this folder.
set -eu
folder=$1
bin=$(pg_config --bindir 2>/dev/null || true)
if [ ! -x "$bin/initdb" ]; then
    newest=$(find /usr/lib/postgresql -maxdepth 1 -name '[0-9]*' 2>/dev/null | sort -t/ -k5n | tail -n 1)
    bin=$newest/bin
fi
[ -x "$bin/initdb" ] || { echo "postgres_programs.sh: PostgreSQL's programs are not installed" >&2; exit 77; }
# As server/store/private_cluster.c says it.
words='-U kvrun --auth-local=trust --auth-host=reject -E UTF8 --locale=C --data-checksums --no-instructions'

mkdir -p "$folder/bin"
chmod 0755 "$folder" "$folder/bin"
as_owner=''
if [ "$(id -u)" = 0 ]; then # which PostgreSQL refuses
    install -d -o postgres -m 0700 "$folder/made"
    as_owner='setpriv --reuid=postgres --regid=postgres --init-groups --reset-env'
else
    mkdir -p "$folder/made"
    chmod 0700 "$folder/made"
fi
# shellcheck disable=SC2086 # words are words
(cd / && $as_owner "$bin/initdb" -D "$folder/made/data" $words --no-sync >/dev/null)

for program in "$bin"/*; do
    ln -s "$program" "$folder/bin/"
done
rm "$folder/bin/initdb"
rm -f "$folder/bin/pg_config"
cat >"$folder/bin/initdb" <<SHIM
#!/bin/sh
target=\${2:-}
words=\$*
words=\${words#-D "\$target" }
if [ "\${1:-}" = -D ] && [ "\${words% --no-sync}" = '$words' ]; then
    exec cp -a '$folder/made/data' "\$target"
fi
exec '$bin/initdb' "\$@"
SHIM
cat >"$folder/bin/pg_config" <<SHIM
#!/bin/sh
case \${1:-} in
--bindir) echo '$folder/bin' ;;
--version) exec '$bin/postgres' --version | sed 's/^postgres (PostgreSQL)/PostgreSQL/' ;;
*) exit 1 ;;
esac
SHIM
chmod 0755 "$folder/bin/initdb" "$folder/bin/pg_config"
# shellcheck disable=SC2086
(cd / && $as_owner test -x "$folder/bin/initdb") || { echo "postgres_programs.sh: $folder is out of PostgreSQL's reach" >&2; exit 77; }
