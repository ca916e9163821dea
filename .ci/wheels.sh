#!/usr/bin/env bash
# The files of a release, in the folder that is the first argument: abi3 wheels for Linux on x86-64 and aarch64, and the sdist. They are checked, and
# tried in clean environments without Rust: on this machine, with and without PyTorch, and the other architecture's under emulation where its
# interpreter and qemu are to be had. Zig links against an old glibc, so that a wheel made here runs on systems from 2018 on.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never

dist=${1:-dist}
mkdir -p "$dist"
dist=$(realpath "$dist")
[ -z "$(ls -A "$dist")" ] || { echo "$dist must be empty, and is not"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet "maturin[zig]>=1.10,<2" abi3audit auditwheel twine
# maturin looks for zig there too
export PATH=$work/tools/bin:$PATH

for architecture in x86_64 aarch64; do
  target=$architecture-unknown-linux-gnu
  [ -d "$(rustc --print target-libdir --target "$target")" ] || rustup target add "$target"
  echo "== wheel for $architecture"
  maturin build --quiet --release --locked --zig --target "$target" --compatibility manylinux_2_28 --out "$dist"
done
echo "== sdist"
maturin sdist --out "$dist"

echo "== checks"
twine check --strict "$dist"/*
abi3audit --strict "$dist"/*.whl
for wheel in "$dist"/*.whl; do auditwheel show "$wheel" | grep -F manylinux_2 || { echo "$wheel is no manylinux wheel"; exit 1; }; done

# runs a command with the environment of a machine without Rust
clean() { env -i PATH=/usr/bin:/bin HOME="$work" "$@"; }
# try NAME FILE [PACKAGES]: a new environment with the file and some packages, and the smoke test in it
try() {
  local name=$1 file=$2
  shift 2
  python3 -m venv "$work/$name"
  "$work/$name/bin/pip" install --quiet --no-compile numpy "$@" "$file"
  clean "$work/$name/bin/python" .ci/smoke.py
}

echo "== wheel, without PyTorch"
try plain "$dist"/*x86_64.whl
echo "== wheel, with PyTorch"
if [ -n "${STATESCAN_TORCH_PYTHON:-}" ]; then
  # an environment that has PyTorch, to which the wheel is added on the path: PyTorch takes four gigabytes
  pip install --quiet --no-deps --target "$work/unpacked" "$dist"/*x86_64.whl
  clean PYTHONPATH="$work/unpacked" "$STATESCAN_TORCH_PYTHON" .ci/smoke.py
else
  try torch "$dist"/*x86_64.whl torch
fi
echo "== sdist, built from its own file"
try source "$dist"/*.tar.gz
echo "== wheel for aarch64"
.ci/emulate.sh "$dist"/*aarch64.whl
