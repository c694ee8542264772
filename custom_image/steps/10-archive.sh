#!/usr/bin/env bash
# Pin Ubuntu's archive to one day, and disable automatic upgrades.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin archive "check that UBUNTU_SNAPSHOT in versions.env is within the last two years (snapshot.ubuntu.com)"

# apt 2.7 detects which repositories have snapshots; those of other vendors are read as usual.
put /etc/apt/apt.conf.d/50runner-snapshot <<EOF
APT::Snapshot "$UBUNTU_SNAPSHOT";
Acquire::Retries "5";
DPkg::Lock::Timeout "300";
EOF
# An upgrade of the driver during a training makes the GPU unusable.
put /etc/apt/apt.conf.d/99runner-no-upgrades <<'EOF'
APT::Periodic::Enable "0";
APT::Periodic::Update-Package-Lists "0";
APT::Periodic::Unattended-Upgrade "0";
EOF
for unit in apt-daily.timer apt-daily-upgrade.timer unattended-upgrades.service; do
  [[ $(systemctl is-enabled "$unit" 2>/dev/null || true) == masked ]] || systemctl mask --now "$unit"
done

once archive.read "$UBUNTU_SNAPSHOT" apt-get update
want ca-certificates curl gnupg
