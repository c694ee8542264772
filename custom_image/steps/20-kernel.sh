#!/usr/bin/env bash
# Hold the kernel that the image has booted, because the driver's module is built for it.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin kernel "build from a Canonical image with an -azure kernel: UBUNTU_IMAGE_* in versions.env"

running=$(uname -r)
[[ $running == *-azure ]] || refuse "the kernel is $running, not an Azure kernel"
mapfile -t kernel < <(
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' 'linux-image-*' 'linux-modules-*' \
    'linux-headers-*' 'linux-azure*' 2>/dev/null | sed -n 's/^installed //p' |
    grep -v '^linux-modules-nvidia-' | sort -u || true
)
((${#kernel[@]})) || refuse "no kernel package is installed"
hold "${kernel[@]}"
