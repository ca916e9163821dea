#!/usr/bin/env bash
# The Python package: lints, a wheel, and its tests, on the CPU, in the virtual environment that is the argument; `environment.sh` makes it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

# in the profile and with the features of the Rust tests, which have built the library already; were a feature of a dependency another one, it would be
# built again, and minutes with it
dependencies() { cargo tree --locked --prefix none --format '{p} {f}' "$@" | sed 's/ (\*)$//' | grep -v '^statescan-py ' | sort --unique; }
other=$(comm -13 <(dependencies --workspace --features statescan-cli/tokenizers) <(dependencies --package statescan-py --features workspace --edges normal,build))
[ -z "$other" ] || { printf 'The feature `workspace` of statescan-py lacks what other members turn on, and these are built twice:\n%s\n' "$other"; exit 1; }
rm -rf "$venv/wheel"
PATH=$venv/bin:$PATH MATURIN_PEP517_ARGS="--profile dev --features workspace" \
  "$venv/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$venv/wheel" . &
wheel=$!

"$venv/bin/ruff" check
"$venv/bin/ruff" format --check

wait "$wheel"
"$venv/bin/abi3audit" --strict "$venv"/wheel/*.whl
"$venv/bin/pip" install --quiet --no-compile --no-deps --force-reinstall "$venv"/wheel/*.whl
# a process for each core, with a thread each
OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -p no:cacheprovider --quiet --durations 15 --numprocesses auto --dist worksteal
