#!/usr/bin/env bash
# The kernel stays what the image booted: the driver's module is built for it.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin kernel "build from a Canonical image with an -azure kernel: UBUNTU_IMAGE_* in versions.env"

running=$(uname -r)
[[ $running == *-azure ]] || refuse "the kernel is $running, and Azure's is needed"
mapfile -t kernel < <(
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' 'linux-image-*' 'linux-modules-*' \
    'linux-headers-*' 'linux-azure*' 2>/dev/null | sed -n 's/^installed //p' |
    grep -v '^linux-modules-nvidia-' | sort -u || true
)
((${#kernel[@]})) || refuse "no package of a kernel is installed"
hold "${kernel[@]}"
