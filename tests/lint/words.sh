#!/bin/sh
# Words that mark unfinished work: words.sh ROOT, or words.sh --self-test. What is not done is an issue, not a comment.
set -eu
lint=$(cd "$(dirname "$0")" && pwd)
# Spelled in two halves, so that this file does not find itself.
words='\b(TO''DO|FIX''ME|XX''X)\b'

if [ "$1" = --self-test ]; then
    printf '/* %s: later */\n' 'TO''DO' | grep -qE "$words"
    printf 'x = 1; // %s\n' 'XX''X' | grep -qE "$words"
    if printf 'mktemp /tmp/a.XXXXXX; TODOS\n' | grep -E "$words"; then
        exit 1
    fi
    exit 0
fi
cd "$1"
# /dev/null makes grep print names even for one file; -I leaves binary files out.
if "$lint/files.sh" . | grep -vE '^(LICENSE|tests/engine/text)' | tr '\n' '\0' | xargs -0 grep -nIE "$words" /dev/null; then
    exit 1
fi
