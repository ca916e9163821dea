#!/usr/bin/env bash
# Whether every place that names the version of a release agrees with a tag (`v0.1.0`); without a tag, whether they agree with each other.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(grep --max-count 1 -oP '^version = "\K[^"]+' Cargo.toml)
wrong=0
expect() {
  [ "$2" = "$version" ] || { echo "$1 has '$2', and the workspace has $version"; wrong=1; }
}
[ -z "${1:-}" ] || expect "the tag" "${1#v}"
expect "CITATION.cff" "$(grep -oP '^version: \K.*' CITATION.cff)"
for found in $(grep -oP '^statescan[a-z-]* = \{ path = .*version = "\K[^"]+' Cargo.toml); do expect "workspace.dependencies" "$found"; done
# only a release needs its section of the changelog
[ -z "${1:-}" ] || grep -qE "^## \[?$version\]? - [0-9]{4}-[0-9]{2}-[0-9]{2}" CHANGELOG.md || { echo "CHANGELOG.md has no dated section for $version"; wrong=1; }
exit $wrong
