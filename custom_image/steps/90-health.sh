#!/usr/bin/env bash
# The node's health check, what is installed as a list, and no leftovers of the build.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin health "the folder with these scripts must be whole"

put "$PREFIX/bin/node-health" 0755 <"$IMAGE_DIR/health.sh"
put "$PREFIX/versions.env" <"$IMAGE_DIR/versions.env"
packages=$(dpkg-query -W -f '${Package}=${Version}\n' | sort)
put "$PREFIX/packages.txt" <<<"$packages"
if compgen -G "$IMAGE_ROOT/var/cache/apt/archives/*.deb" >/dev/null; then
  apt-get clean
fi
