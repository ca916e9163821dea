#!/usr/bin/env bash
# The Python package: lints, a wheel, and its tests in a clean virtual environment with PyTorch and JAX from PyPI, on the CPU.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"

# the wheel, in the profile and with the features of the Rust tests, which have built the library already; the downloads go on beside it
MATURIN_PEP517_ARGS="--profile dev --features workspace" "$venv/bin/pip" wheel --quiet --no-deps --wheel-dir "$venv/wheel" . &
wheel=$!
# PyPI's PyTorch needs the CUDA libraries even where there is no GPU: four gigabytes, which pip unpacks one file after the other
packages=(abi3audit hypothesis jax matplotlib numpy pytest pytest-xdist ruff safetensors torch tqdm transformers)
"$venv/bin/pip" install --quiet uv
# uv does not read pip's configuration: where only that reaches a registry, pip goes on
UV_HTTP_TIMEOUT=180 "$venv/bin/uv" pip install --system-certs --quiet --no-cache --python "$venv/bin/python" "${packages[@]}" ||
  "$venv/bin/pip" install --quiet --no-compile "${packages[@]}"

"$venv/bin/ruff" check
"$venv/bin/ruff" format --check

wait "$wheel"
"$venv/bin/abi3audit" --strict "$venv"/wheel/*.whl
"$venv/bin/pip" install --quiet --no-compile --no-deps "$venv"/wheel/*.whl
# a process for each core, with a thread each
OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -p no:cacheprovider --quiet --numprocesses auto
