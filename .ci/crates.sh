#!/usr/bin/env bash
# The crates as crates.io gets them: each is packed, and built from what was packed alone; with --pack only packed. With --publish they are uploaded, each after those that it
# depends on; cargo takes the credentials from CARGO_REGISTRY_TOKEN, and leaves out crates that are not to be published.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0

case ${1:-} in
  --publish) cargo publish --workspace --locked ;;
  --pack) cargo package --workspace --exclude statescan-py --exclude statescan-benches --locked --allow-dirty --no-verify --quiet ;;
  *) cargo package --workspace --exclude statescan-py --exclude statescan-benches --locked --allow-dirty ;;
esac
