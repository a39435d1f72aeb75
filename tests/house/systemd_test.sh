#!/usr/bin/env bash
# The systemd unit: systemd-analyze finds nothing to complain of, the exposure is at most 3.0, and what it promises of the
# configuration is true. Without systemd-analyze it exits 77.
set -euo pipefail
source_folder=$1
unit=$source_folder/docker/systemd/kvrun.service
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not here" >&2; exit 77; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/kvtest.XXXXXX")
trap 'rm -rf "$folder"' EXIT
# The binary of the unit is not installed here; any that is there will do.
sed 's|^ExecStart=/usr/bin/kvrun|ExecStart=/bin/true|' "$unit" >"$folder/kvrun.service"

verify() { SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$1" 2>&1; }

complaints=$(verify "$folder/kvrun.service") || { echo "verify failed: $complaints" >&2; exit 1; }
if grep -F kvrun.service <<<"$complaints"; then
    echo "systemd-analyze complains of the unit" >&2
    exit 1
fi
# The control: a setting that does not exist is found.
sed 's|^RestartSec=|RestartSeconds=|' "$folder/kvrun.service" >"$folder/control.service"
verify "$folder/control.service" | grep -q RestartSeconds || { echo "the control was not found" >&2; exit 1; }

# Only since systemd 250 can a file be judged without a manager.
if systemd-analyze security --help 2>/dev/null | grep -q -- --offline; then
    systemd-analyze security --no-pager --offline=yes --threshold=30 "$folder/kvrun.service" >"$folder/security" 2>&1 || {
        tail -n 3 "$folder/security" >&2
        echo "the unit is exposed by more than 3.0" >&2
        exit 1
    }
fi
grep -q '^Type=notify$' "$unit"
grep -q '^WatchdogSec=' "$unit"
grep -q '^KillMode=mixed$' "$unit"
