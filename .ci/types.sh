#!/usr/bin/env bash
# Whether type checkers know what the installed package has: how many of its public symbols have complete types, and whether a program that uses them is
# free of errors. The argument is a virtual environment with the package; `environment.sh` makes it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1")

report=$(cd "$venv" && PATH=$venv/bin:$PATH basedpyright --verifytypes statescan --ignoreexternal || true)
score=$(grep -oP 'Type completeness score: \K[0-9.]+' <<<"$report") || { echo "$report"; exit 1; }
awk -v score="$score" 'BEGIN { exit !(score >= 98) }' || { grep error <<<"$report"; echo "only $score % of the public symbols have complete types"; exit 1; }
"$venv/bin/mypy" --strict --python-executable "$venv/bin/python" --cache-dir "$venv/mypy" tests/python/typed.py
echo "$score % of the public symbols have complete types"
