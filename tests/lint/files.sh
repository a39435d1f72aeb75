#!/bin/sh
# Prints the project's files, one a line, relative to its root: files.sh ROOT [pattern for grep -E]
# With git: what is tracked or could be. Without (an unpacked release): everything but build folders.
set -eu
cd "$1"
pattern=${2:-.}
if git rev-parse --show-toplevel >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard
else
    find . \( -name 'build*' -o -name node_modules -o -name .git \) -prune -o -type f -print | sed 's|^\./||'
fi | sort -u | while IFS= read -r file; do [ -f "$file" ] && printf '%s\n' "$file"; done | grep -E -- "$pattern"
