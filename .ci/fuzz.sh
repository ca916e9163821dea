#!/usr/bin/env bash
# Fuzzing, ten seconds for each target unless STATESCAN_FUZZ_SECONDS says otherwise, with the address sanitizer; needs a nightly toolchain and cargo-fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! rustup run nightly rustc --version >/dev/null 2>&1; then
  echo "skipped: fuzzing needs a nightly toolchain, and none is installed"
  exit 0
fi

# Comparisons are mostly of floating-point numbers, so that recording them finds nothing; kernels in one unit of code would take one core for minutes.
build=(--strip-dead-code --codegen-units 16 --no-trace-compares)

# a failure's first lines say what happened where, its last ones give the input; the program's own steps lie between
fuzz() {
  local log
  log=$(mktemp)
  RUST_BACKTRACE=0 rustup run nightly cargo fuzz run "${build[@]}" "$1" -- \
    -max_total_time="${STATESCAN_FUZZ_SECONDS:-10}" -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 >"$log" 2>&1 && tail -n 5 "$log" && return
  grep --max-count 1 --after-context 25 -E 'ERROR|panicked|^error' "$log" || true
  tail -n 25 "$log"
  return 1
}

for target in $(rustup run nightly cargo fuzz list); do
  fuzz "$target"
done
