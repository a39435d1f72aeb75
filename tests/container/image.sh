#!/usr/bin/env bash
# Builds the image as docker/Dockerfile says, from what git knows of the checkout, without a container daemon and without a registry: the
# base comes from the distribution's own packages under the name that the Dockerfile uses. image.sh FOLDER TAG; the folder keeps the store.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1 tag=$2
mkdir -p "$folder"
cat >"$folder/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
CONF
cat >"$folder/storage.conf" <<CONF
[storage]
driver = "overlay"
runroot = "$folder/run"
graphroot = "$folder/graph"
CONF
export CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf
base=docker.io/library/debian:bookworm-slim
if ! podman image exists "$base"; then
    mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm - | podman import --quiet - "$base" >/dev/null
fi
rm -rf "$folder/context"
mkdir -p "$folder/context"
git -C "$source" ls-files -z --cached --others --exclude-standard | (cd "$source" && xargs -0 -I{} sh -c 'test -e "$1" && printf "%s\0" "$1"' sh {}) |
    tar -C "$source" --null -T - -cf - | tar -C "$folder/context" -xf -
revision=$(git -C "$source" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
buildah bud --quiet --pull-never --isolation chroot --format docker --layers --build-arg "REVISION=$revision" -t "$tag" -f "$folder/context/docker/Dockerfile" "$folder/context"
