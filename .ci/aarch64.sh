#!/usr/bin/env bash
# The library's tests compiled for aarch64 and run by qemu's user-mode emulation: NEON and scalar kernels against the oracle, over options, types,
# layouts and sizes. With `all` also the library's own tests and everything else that an emulator can do in reasonable time.
# Where the target's standard library, its linker or the emulator are not to be had, the script says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0

target=aarch64-unknown-linux-gnu

skip() { echo "skipped: $1"; exit 0; }

# Debian packages, installed if the command that they bring is missing
need() {
  command -v "$1" >/dev/null && return
  shift
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || skip "needs $*"
  { apt-get update && apt-get install --yes --no-install-recommends "$@"; } >/dev/null || skip "apt-get cannot install $*"
}

need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
need qemu-aarch64 qemu-user

[ -d "$(rustc --print target-libdir --target "$target")" ] || timeout 180 rustup target add "$target" || skip "no standard library for $target"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
# Emulation is slow. It shows nothing more of what is left out: steps are made of the same vectors, what memory a call takes at a large shape does
# not depend on the processor, memory is read and written in the order of the machine below, and long rows and properties of SSD at large sizes
# take the same kernels for minutes. Oracles and refusals know no vectors; random problems draw from what the other tests go through one by one.
# An emulator does not mind where rows begin; how work is cut for threads and waves, and what other people's functions give, knows no vectors either.
modules=(causal_conv1d:: gated_delta_rule:: linear:: linear_scan:: selective_scan:: simplified_scan:: ssd::)
skipped=(--skip long_rows --skip properties::)
if [ "${1:-}" = all ]; then
  cargo test --package statescan --target "$target" --lib
else
  skipped+=(--skip oracle:: --skip oracle_ --skip errors:: --skip rules:: --skip random_problems --skip any_problem --skip any_shape
    --skip threads_or_runs --skip rows_begin_anywhere --skip several_waves --skip vectors:: --skip cuda)
fi
cargo test --package statescan --target "$target" --test library -- "${modules[@]}" "${skipped[@]}"
