#!/usr/bin/env bash
# Install NVIDIA's compute driver, signed by Canonical, for the running kernel.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin driver "set UBUNTU_IMAGE_VERSION and UBUNTU_SNAPSHOT in versions.env to the same date"

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
# Image Builder cannot restart a Linux VM, so load the module now; verify.sh needs it.
if [[ ! -e $IMAGE_ROOT/proc/driver/nvidia/version ]]; then
  modprobe nvidia
  modprobe nvidia-uvm
fi
