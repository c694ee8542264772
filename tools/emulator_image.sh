#!/usr/bin/env bash
# Build the emulator's image from batch_emulator/Containerfile, and print its name and compressed size.
# Usage: tools/emulator_image.sh [NAME]      default: localhost/batch-emulator:HASH of its files
# An image that exists is not built again. The base is that of the Containerfile if the engine has it or
# can pull it; otherwise, as root, it is made with debootstrap from Debian's archive.
# CONTAINER_ENGINE selects the engine (docker or podman). Exit code 75 means that nothing can be built
# here; stderr says why.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C # the hash depends on the order of file names

say() { printf '[emulator image] %s\n' "$*" >&2; }
cannot() { say "$*" && exit 75; }

engine=""
for candidate in ${CONTAINER_ENGINE:-podman docker}; do
  if command -v "$candidate" >/dev/null && "$candidate" info >/dev/null 2>&1; then
    engine=$candidate && break
  fi
done
[ -n "$engine" ] || cannot "no container engine runs here (tried: ${CONTAINER_ENGINE:-podman docker})"
is_podman() { "$engine" --version | grep -q '^podman'; }
has() { "$engine" image inspect "$1" >/dev/null 2>&1; }

hash=$(git ls-files -z --cached --others --exclude-standard batch_emulator | xargs -0 sha256sum | sha256sum | cut -c1-16)
name=${1:-localhost/batch-emulator:$hash}

# base_image: print the base of the Containerfile, or one that is made from Debian's archive.
base_image() {
  local base made=localhost/batch-emulator-base:bookworm scratch
  base=$(sed -n 's/^ARG BASE=//p' batch_emulator/Containerfile)
  if has "$base" || "$engine" pull --quiet "$base" >/dev/null 2>&1; then
    echo "$base" && return
  fi
  if ! has "$made"; then
    [ "$(id -u)" = 0 ] || cannot "$base cannot be pulled, and making a base needs root"
    command -v debootstrap >/dev/null || cannot "$base cannot be pulled, and there is no debootstrap"
    say "once: making a base of Debian 12, because $base cannot be pulled"
    scratch=$(mktemp -d)
    if ! debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv \
      bookworm "$scratch/root" >"$scratch/log" 2>&1; then
      tail -3 "$scratch/log" >&2
      rm -rf "$scratch"
      cannot "debootstrap failed"
    fi
    (cd "$scratch/root" && rm -rf var/cache/apt/* var/lib/apt/lists/* usr/share/{doc,info,locale,man})
    tar -C "$scratch/root" --one-file-system -cf "$scratch/root.tar" .
    "$engine" import "$scratch/root.tar" "$made" >/dev/null
    rm -rf "$scratch"
  fi
  echo "$made"
}

if ! has "$name"; then
  base=$(base_image)
  options=(--network host --build-arg "BASE=$base" --tag "$name")
  options+=(--build-arg "VERSION=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' batch_emulator/__init__.py)")
  if is_podman; then
    options+=(--format docker) # OCI's own has no health check
    bundle=/etc/ssl/certs/ca-certificates.crt
    if [ -n "${PIP_CERT:-}" ]; then # this network has a certificate authority of its own
      options+=(--volume "$PIP_CERT:$bundle:ro" --build-arg "PIP_CERT=$bundle")
    fi
  fi
  say "building $name from $base"
  "$engine" build "${options[@]}" --file batch_emulator/Containerfile batch_emulator >&2
fi
size=$("$engine" save "$name" | gzip -6 | wc -c)
printf '%s\n' "$name"
say "$name: $((size / 1000000)) MB compressed"
