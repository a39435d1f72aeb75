#!/bin/sh
# api/openapi.yaml under Redocly's and Spectral's rules and the house's own (spectral.yaml). lint_test.sh SOURCE TOOLS; 77 without the tools.
set -u
source=$1 tools=$2
[ -x "$tools/node_modules/.bin/redocly" ] || { echo "the tools of tests/spec are not there: tests/spec/fetch.sh brings them"; exit 77; }
export REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true
rc=0
"$tools/node_modules/.bin/redocly" lint --config "$source/tests/spec/redocly.yaml" --format stylish "$source/api/openapi.yaml" || rc=1
"$tools/node_modules/.bin/spectral" lint --fail-severity warn -r "$source/tests/spec/spectral.yaml" "$source/api/openapi.yaml" || rc=1
# The control: a file with a fault is refused.
broken=$(mktemp "${TMPDIR:-/tmp}/kvspec.XXXXXX")
trap 'rm -f "$broken"' EXIT
sed 's/^ *operationId: livez$/      operationId: version/' "$source/api/openapi.yaml" >"$broken"
if "$tools/node_modules/.bin/redocly" lint --config "$source/tests/spec/redocly.yaml" "$broken" >/dev/null 2>&1; then
    echo "an operation id that is there twice was not noticed"
    rc=1
fi
exit $rc
