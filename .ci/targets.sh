#!/usr/bin/env bash
# The library, the program and the Python module compile, as far as a check without a linker can say, for the systems that no test runs on, and with the
# oldest compiler that the crates promise. A target or a toolchain that rustup cannot fetch is skipped, with a word.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0

have=()
for target in aarch64-apple-darwin x86_64-pc-windows-gnu; do
  if [ -d "$(rustc --print target-libdir --target "$target")" ] || timeout 180 rustup target add "$target" >/dev/null 2>&1; then
    have+=(--target "$target")
  else
    echo "skipped: no standard library for $target"
  fi
done
[ ${#have[@]} = 0 ] || cargo check --quiet --package statescan-cli --package statescan-py "${have[@]}"

oldest=$(grep --max-count 1 -oP '^rust-version = "\K[^"]+' Cargo.toml)
if cargo "+$oldest" --version >/dev/null 2>&1 || timeout 300 rustup toolchain install "$oldest" --profile minimal --no-self-update >/dev/null 2>&1; then
  # a folder of its own, so that neither compiler throws away what the other has built
  CARGO_TARGET_DIR=target/oldest cargo "+$oldest" check --quiet --package statescan-cli --package statescan-py
else
  echo "skipped: rustup cannot fetch Rust $oldest; clippy's incompatible_msrv looks for what is newer"
fi

# an interpreter without the global lock is refused in words, before the library is built
config=$(mktemp)
trap 'rm -f "$config"' EXIT
printf '%s\n' implementation=CPython version=3.14 shared=true abi3=false build_flags=Py_GIL_DISABLED suppress_build_script_link_lines=false >"$config"
refusal=$(PYO3_CONFIG_FILE=$config CARGO_TARGET_DIR=target/refused cargo check --package statescan-py 2>&1) && { echo "free-threaded Python was not refused"; exit 1; }
grep --fixed-strings "no free-threaded Python" <<<"$refusal" || { echo "$refusal"; exit 1; }
