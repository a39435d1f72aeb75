#!/bin/sh
# Layout is what clang-format makes of .clang-format: format.sh ROOT, or format.sh --self-test ROOT.
# Version 14 decides, because other versions break lines elsewhere.
set -eu
lint=$(cd "$(dirname "$0")" && pwd)
tool=$(command -v clang-format-14 || command -v clang-format) || { echo "clang-format is not here"; exit 77; }
case $("$tool" --version) in
*version\ 14.*) ;;
*) echo "clang-format 14 is not here, only: $("$tool" --version)"; exit 77 ;;
esac

if [ "$1" = --self-test ]; then
    cd "$2"
    printf 'int a(void)\n{\n    return 1;\n}\n' | "$tool" --style=file --assume-filename=a.c --dry-run -Werror
    if printf 'int a(void) { return 1; }\n' | "$tool" --style=file --assume-filename=a.c --dry-run -Werror 2>/dev/null; then
        echo "control: another layout was not found" >&2
        exit 1
    fi
    exit 0
fi
cd "$1"
"$lint/files.sh" . '\.(c|h)$' | xargs "$tool" --dry-run -Werror
