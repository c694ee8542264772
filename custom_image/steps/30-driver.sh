#!/usr/bin/env bash
# NVIDIA's driver for compute, as Canonical signs it, for the kernel that runs.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin driver "UBUNTU_IMAGE_VERSION and UBUNTU_SNAPSHOT of versions.env must be of the same days"

branch=$NVIDIA_DRIVER_BRANCH
packages=(
  "linux-modules-nvidia-$branch-server-$(uname -r)"
  "nvidia-headless-no-dkms-$branch-server"
  "nvidia-utils-$branch-server"
  "libnvidia-decode-$branch-server"
  "libnvidia-encode-$branch-server"
)
want "${packages[@]}"
mapfile -t driver < <(
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' '*nvidia*' 2>/dev/null |
    sed -n 's/^installed //p' | grep -v -- '-container' | sort -u || true
)
hold "${driver[@]}"
# Image Builder cannot restart a Linux machine: the module is loaded now, and verify.sh asks it.
if [[ ! -e $IMAGE_ROOT/proc/driver/nvidia/version ]]; then
  modprobe nvidia
  modprobe nvidia-uvm
fi
