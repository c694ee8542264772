#!/usr/bin/env bash
# Run steps of the VM image in a root of Ubuntu 24.04, which debootstrap makes once: without a GPU and
# without Azure, but with the real archive, packages and files. Usage, as root:
#   tools/image_root.sh FOLDER [STEP ...]      default: every step of custom_image/provision.sh
# Stand-ins replace what no such root has: the name of a booted Azure kernel, systemctl and modprobe.
# A step whose server cannot be reached is not run; it is printed as "unproven: STEP: why".
# Exit code 75 means that nothing can run here; stderr says why.
set -euo pipefail
cd "$(dirname "$0")/.."

cannot() { printf '[image root] %s\n' "$*" >&2; exit 75; }
unproven() { printf 'unproven: %s: %s\n' "$1" "$2"; }
reaches() { curl --silent --output /dev/null --max-time 10 "$1"; }

[ $# -gt 0 ] || { sed -n '2,8p' "$0" | cut -c3- >&2; exit 2; }
root=$(mkdir -p "$1" && cd "$1" && pwd)
shift
[ "$(id -u)" = 0 ] || cannot "this needs root: chroot"
command -v debootstrap >/dev/null || cannot "no debootstrap here: apt-get install debootstrap"
archive=http://archive.ubuntu.com/ubuntu # the default of debootstrap
reaches "$archive/dists/noble/InRelease" || cannot "Ubuntu's archive cannot be reached"
# shellcheck source=/dev/null
source custom_image/versions.env

# The keys of the archive, which Debian's own packages do not have everywhere. The hash is that of the
# signed index of Ubuntu 24.04 (read 2026-11-29).
keyring() {
  local package=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
  local hash=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
  curl --fail --silent --show-error --output "$1/keyring.deb" "$archive/$package"
  printf '%s  %s\n' "$hash" "$1/keyring.deb" | sha256sum --check --quiet
  dpkg-deb --extract "$1/keyring.deb" "$1"
}

if [ ! -e "$root/.made" ]; then
  scratch=$(mktemp -d)
  keyring "$scratch"
  debootstrap --variant=minbase --components=main,restricted,universe --include=ca-certificates,python3 \
    --keyring="$scratch/usr/share/keyrings/ubuntu-archive-keyring.gpg" \
    noble "$root" "$archive" /usr/share/debootstrap/scripts/gutsy >&2
  for suite in noble noble-updates noble-security; do
    echo "deb $archive $suite main restricted universe"
  done >"$root/etc/apt/sources.list"
  rm -rf "$scratch"
  touch "$root/.made"
fi
cp /etc/resolv.conf "$root/etc/resolv.conf"
# A proxy of this machine may have a certificate that only this machine trusts.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root/opt/custom_image" "$root/opt/stand-ins"
cp -r custom_image "$root/opt/custom_image"
mkdir -p "$root/opt/stand-ins"
if ! reaches "https://snapshot.ubuntu.com/ubuntu/$UBUNTU_SNAPSHOT/dists/noble/InRelease"; then
  unproven archive "snapshot.ubuntu.com cannot be reached, so the archive of today is used"
  sed -i '/^APT::Snapshot/d' "$root/opt/custom_image/steps/10-archive.sh"
  rm -f "$root/etc/apt/apt.conf.d/50runner-snapshot" "$root/var/lib/runner-image/archive.read"
fi

# Mounts end with the command, because they are in a namespace of its own.
in_root() {
  # shellcheck disable=SC2016 # the inner shell expands them
  unshare --mount sh -c 'mount --bind /proc "$1/proc" && exec chroot "$@"' sh \
    "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/opt/stand-ins:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
stand_in() { cat >"$root/opt/stand-ins/$1" && chmod +x "$root/opt/stand-ins/$1"; }
in_root apt-get update -q >&2
kernel=$(in_root apt-cache pkgnames "linux-modules-nvidia-$NVIDIA_DRIVER_BRANCH-server-" |
  sed -n 's/.*-server-\([0-9].*[0-9]-azure\)$/\1/p' | sort -V | tail -1)
stand_in uname <<EOF
#!/bin/sh
[ "\$*" = -r ] && { echo $kernel; exit 0; }
exec /bin/uname "\$@"
EOF
# shellcheck disable=SC2016 # the stand-in expands it
printf '#!/bin/sh\n[ "$1" != is-enabled ] || echo masked\n' | stand_in systemctl
printf '#!/bin/sh\nexit 0\n' | stand_in modprobe

servers() {
  case $1 in
    cuda | cudnn) echo "$CUDA_REPOSITORY/Packages" ;;
    containers) echo "$TOOLKIT_REPOSITORY/Packages" ;;
    blobfuse) echo "$MICROSOFT_REPOSITORY/dists/noble/InRelease" ;;
    driver)
      # Mirrors may lack the kernel modules, which are in a part of their own.
      in_root apt-get install --print-uris -qq --no-install-recommends \
        "linux-modules-nvidia-$NVIDIA_DRIVER_BRANCH-server-$kernel" |
        sed -n "s/^'\([^']*linux-modules-nvidia[^']*\)'.*/\1/p"
      ;;
  esac
}
[ $# -gt 0 ] || mapfile -t steps < <(custom_image/provision.sh --list)
[ $# -eq 0 ] || steps=("$@")
for step in "${steps[@]}"; do
  missing=""
  for url in $(servers "$step"); do
    curl --fail --silent --head --output /dev/null --max-time 20 "$url" || missing=$url
  done
  if [ -n "$missing" ]; then
    unproven "$step" "$(cut -d/ -f3 <<<"$missing") does not give ${missing##*/}"
    continue
  fi
  if [ "$step" = kernel ]; then
    in_root apt-get install -y -q --no-install-recommends "linux-image-$kernel" >&2
  fi
  in_root /opt/custom_image/provision.sh "$step"
  echo "ran: $step"
done
