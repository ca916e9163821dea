#!/usr/bin/env bash
# The library's tests compiled for aarch64 and run by qemu's user-mode emulation: NEON and scalar kernels against the oracle, over options, types,
# layouts and sizes. With `all` also the library's own tests and everything else that an emulator can do in reasonable time.
#
# The standard library for the target is the compiler's own where it is installed (`rustup target add aarch64-unknown-linux-gnu`); otherwise
# it is built from Debian's package of the same version's sources. Where neither is to be had, the script says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0

target=aarch64-unknown-linux-gnu
folder=${CARGO_TARGET_DIR:-$PWD/target}/aarch64-std

skip() { echo "skipped: $1"; exit 0; }

# Debian packages, installed if the command that they bring is missing
need() {
  command -v "$1" >/dev/null && return
  shift
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || skip "needs $*"
  { apt-get update && apt-get install --yes --no-install-recommends "$@"; } >/dev/null || skip "apt-get cannot install $*"
}

installed() { [ -d "$(rustc --print target-libdir --target "$target")" ]; }

# the sources of the running compiler's standard library, from the mirror that this system uses
fetch_sources() {
  local version mirror apt keys=/usr/share/keyrings/debian-archive-keyring.gpg
  version=$(rustc --version | cut -d ' ' -f 2)
  sources=$folder/usr/src/rustc-$version/library
  [ -f "$sources/Cargo.lock" ] && return
  command -v apt-get >/dev/null && [ -f "$keys" ] || return
  mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
  [ -n "$mirror" ] || return
  rm -rf "$folder"
  mkdir -p "$folder"/{lists,archives}/partial
  printf "deb [signed-by=$keys] $mirror %s main\n" trixie-backports unstable >"$folder/sources.list"
  apt=(-o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::Preferences=/dev/null
    -o "Dir::State::Lists=$folder/lists" -o "Dir::Cache=$folder")
  (cd "$folder" && apt-get "${apt[@]}" update && apt-get "${apt[@]}" download "rust-src=$version*") >/dev/null || return
  dpkg-deb --fsys-tarfile "$folder"/rust-src_*.deb | tar -x -C "$folder" "./usr/src/rustc-$version/library"
}

need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
need qemu-aarch64 qemu-user

flags=()
if ! installed; then
  fetch_sources || skip "no standard library for $target: it is not installed, and Debian has no rust-src of this version"
  # cargo looks for them in the compiler's own folder; this variable is how cargo's own tests name another
  export __CARGO_TESTS_ONLY_SRC_ROOT=$sources RUSTC_BOOTSTRAP=1
  # without the parts that give lines of source to backtraces
  flags=(-Z build-std=std,panic_unwind,test -Z build-std-features=panic-unwind)
fi

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
# Emulation is slow. It shows nothing more of what is left out: steps are made of the same vectors, what memory a call takes at a large shape does
# not depend on the processor, memory is read and written in the order of the machine below, and long rows and properties of SSD at large sizes
# take the same kernels for minutes. Oracles and refusals know no vectors; random problems draw from what the other tests go through one by one.
# An emulator does not mind where rows begin; how work is cut for threads and waves, and what other people's functions give, knows no vectors either.
tests=(--test causal_conv1d --test linear --test linear_scan --test selective_scan --test simplified_scan --test ssd)
skipped=(--skip long_rows --skip properties::)
if [ "${1:-}" = all ]; then
  tests+=(--lib)
else
  skipped+=(--skip oracle:: --skip oracle_ --skip errors:: --skip rules:: --skip random_problems --skip any_problem --skip any_shape
    --skip threads_or_runs --skip rows_begin_anywhere --skip several_waves --skip vectors:: --skip cuda)
fi
cargo test "${flags[@]}" --package statescan --target "$target" "${tests[@]}" -- "${skipped[@]}"
