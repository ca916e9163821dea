#!/usr/bin/env bash
# The smoke test of a wheel for aarch64 under qemu's user-mode emulation, with Debian's Python for that architecture, which is unpacked into a temporary
# folder and not installed. Where these are not to be had, the script says so and succeeds: a release runs the wheel on a machine of that kind.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(realpath "$1")

skip() { echo "skipped: $1"; exit 0; }
command -v apt-get >/dev/null && grep -qi '^ID=debian' /etc/os-release || skip "needs Debian's packages for aarch64"
command -v qemu-aarch64 >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends qemu-user; } >/dev/null || skip "needs qemu-user"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/state/lists/partial" "$root/cache/archives/partial" "$root/system"
touch "$root/state/status"
foreign=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$root/state" -o Dir::State::status="$root/state/status" -o Dir::Cache="$root/cache"
  -o APT::Sandbox::User=root -o Debug::NoLocking=1)
apt-get "${foreign[@]}" update >/dev/null || skip "no packages for aarch64"
apt-get "${foreign[@]}" install --yes --no-install-recommends --download-only python3 libstdc++6 >/dev/null || skip "no Python for aarch64"
for package in "$root"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$root/system"; done
python=$(ls "$root"/system/usr/bin/python3.[0-9]* | head -n 1)

tag=$(basename "$python" | tr -dc 0-9)
python3 -m pip install --quiet --target "$root/packages" --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
  --python-version "$tag" --only-binary :all: numpy "$wheel"
env PYTHONHOME="$root/system/usr" PYTHONPATH="$root/packages" qemu-aarch64 -L "$root/system" "$python" .ci/smoke.py
