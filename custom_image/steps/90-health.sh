#!/usr/bin/env bash
# Install the health check and a list of the packages, and delete downloaded packages.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin health "restore the missing files of this folder (git checkout custom_image)"

put "$PREFIX/bin/node-health" 0755 <"$IMAGE_DIR/health.sh"
put "$PREFIX/versions.env" <"$IMAGE_DIR/versions.env"
packages=$(dpkg-query -W -f '${Package}=${Version}\n' | sort)
put "$PREFIX/packages.txt" <<<"$packages"
if compgen -G "$IMAGE_ROOT/var/cache/apt/archives/*.deb" >/dev/null; then
  apt-get clean
fi
