#!/usr/bin/env bash
# The tests of causal_conv1d, from its source distribution on PyPI, on our functions, on the CPU. Nothing of it
# is built or kept. Its argument is a virtual environment in which statescan is installed; `environment.sh` makes it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1")
plugin=$PWD/tests/peers
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# its setup file looks for CUDA if it is not told otherwise
export CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE
"$venv/bin/pip" download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$folder" \
  causal_conv1d==1.7.0

run() {
  local name=$1
  tar xzf "$folder/$name".tar.gz -C "$folder"
  # their devices, and none of their settings of pytest
  grep -rlE '"cuda"' "$folder/$name/tests" | xargs -r sed -i 's/"cuda"/"cpu"/g'
  (cd "$folder/$name" && PYTHONPATH="$plugin:$folder/$name" OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -p ours_in_place -p no:cacheprovider \
    -c /dev/null --rootdir . --quiet --numprocesses auto --dist worksteal "${@:2}")
}

# the source distribution of mamba_ssm has tests of its kernels, and of generation, which takes times from a GPU
run causal_conv1d-1.7.0 tests
