#!/bin/sh
# Every shell script passes shellcheck: shell.sh ROOT, or shell.sh --self-test.
set -eu
lint=$(cd "$(dirname "$0")" && pwd)
command -v shellcheck >/dev/null || { echo "shellcheck is not here"; exit 77; }

if [ "$1" = --self-test ]; then
    # The script under test is a literal: nothing in it is for this shell.
    # shellcheck disable=SC2016
    if printf '#!/bin/sh\nrm $1/x\n' | shellcheck -S style - >/dev/null; then
        echo "control: an unquoted variable was not found" >&2
        exit 1
    fi
    printf '#!/bin/sh\necho "$1"\n' | shellcheck -S style -
    exit 0
fi
cd "$1"
"$lint/files.sh" . | while IFS= read -r file; do
    case $file in
    *.sh) printf '%s\n' "$file" ;;
    *) head -n 1 "$file" | tr -d '\0' | grep -qE '^#!.*\b(sh|bash)\b' && printf '%s\n' "$file" ;;
    esac
done | xargs shellcheck -x -S warning
