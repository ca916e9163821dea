#!/usr/bin/env bash
# The tests of causal_conv1d and lrnnx, from their source distributions on PyPI, on our functions, on the CPU. Nothing of them
# is built. The argument is a virtual environment in which statescan is installed; `environment.sh` makes it, and calls this with `--fetch`, which only
# fetches the distributions. STATESCAN_PEER_CASES says how many cases of each test are run at most.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1")
plugin=$PWD/tests/peers
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if [ "${2:-}" = --fetch ]; then
  # setup files look for CUDA if they are not told otherwise
  export CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE LRNNX_SKIP_CUDA_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE
  "$venv/bin/pip" download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$venv/peers" \
    causal_conv1d==1.7.0 lrnnx==1.0.0.post1 mamba_ssm==2.3.2.post1
  # fla has a wheel alone; only its signatures are read
  "$venv/bin/pip" download --quiet --no-deps --dest "$venv/peers" fla-core==0.6.0
  exit
fi

run() {
  local name=$1
  tar xzf "$venv/peers/$name".tar.gz -C "$folder"
  # their devices, and none of their settings of pytest
  grep -rlE '"cuda"' "$folder/$name/tests" | xargs -r sed -i 's/"cuda"/"cpu"/g'
  (cd "$folder/$name" && PYTHONPATH="$plugin:$folder/$name" OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -p ours_in_place -p no:cacheprovider \
    -c /dev/null --rootdir . --quiet --numprocesses auto --dist worksteal "${@:2}")
}

# mamba_ssm, whose signatures the tests of the Python package read, has two files of tests only, of its own kernels and of generation, which need a GPU
run causal_conv1d-1.7.0 tests
# scans and steps, and the layers on them; tests of RG-LRU and S7 that need a GPU are skipped
run lrnnx-1.0.0.post1 tests/ops/mamba tests/ops/s5 tests/models/test_ltv/test_{mamba,event_mamba,s5_ltv,event_s5,rglru,s7}.py tests/architectures tests/utils
