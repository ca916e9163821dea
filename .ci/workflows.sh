#!/usr/bin/env bash
# The workflows that GitHub runs are checked by zizmor and actionlint. The argument is a virtual environment that has both; `environment.sh` makes it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

"$venv/bin/zizmor" --offline --no-progress --quiet .github
"$venv/bin/actionlint"
