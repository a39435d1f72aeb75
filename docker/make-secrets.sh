#!/bin/sh
# Makes what compose.yaml needs beside it, once: passwords, a certificate authority of your own with one server certificate, and the
# folders that are mounted. What exists is kept. Files are for the owner alone; kvrun runs as that user.
set -eu
cd "$(dirname "$0")"
umask 077
user=$(id -u) group=$(id -g)
if [ "$user" = 0 ]; then # a container needs no root, so it gets none
    user=10001 group=10001
fi
mkdir -p secrets state/kvrun state/root state/sockets
[ -s secrets/db_password ] || openssl rand -hex 24 >secrets/db_password
[ -s secrets/db_url ] || echo "postgresql://kvrun:$(cat secrets/db_password)@postgres:5432/kvrun" >secrets/db_url
[ -s secrets/grafana_password ] || openssl rand -hex 16 >secrets/grafana_password
if [ ! -s secrets/tls.key ]; then
    openssl req -x509 -newkey ed25519 -nodes -days 825 -subj "/CN=kvrun test authority" -keyout secrets/ca.key -out secrets/ca.crt 2>/dev/null
    openssl req -newkey ed25519 -nodes -subj "/CN=kvrun" -keyout secrets/tls.key -out secrets/tls.csr 2>/dev/null
    printf 'subjectAltName=DNS:kvrun,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n' >secrets/tls.ext
    openssl x509 -req -in secrets/tls.csr -CA secrets/ca.crt -CAkey secrets/ca.key -CAcreateserial -days 397 -extfile secrets/tls.ext \
        -out secrets/tls.crt 2>/dev/null
    rm -f secrets/tls.csr secrets/tls.ext
fi
printf 'KVRUN_UID=%s\nKVRUN_GID=%s\n' "$user" "$group" >.env
if [ "$(id -u)" = 0 ]; then
    chown -R "$user:$group" secrets state
fi
echo "ready: docker compose up -d; the API's certificate is signed by $(pwd)/secrets/ca.crt"
