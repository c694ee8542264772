#!/usr/bin/env bash
# Install Docker from Ubuntu's archive, and NVIDIA's Container Toolkit.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin containers "run journalctl -u docker if Docker does not start; check NVIDIA_CONTAINER_TOOLKIT_VERSION in versions.env"

want docker.io
key runner-toolkit "$TOOLKIT_KEY_URL" "$TOOLKIT_KEY_FINGERPRINT"
repository runner-toolkit \
  "deb [arch=amd64 signed-by=/usr/share/keyrings/runner-toolkit.gpg] $TOOLKIT_REPOSITORY /" \
  "$(only nvidia.github.io 'nvidia-container-toolkit* libnvidia-container*')"
packages=(
  nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools
  libnvidia-container1
)
want "${packages[@]/%/=$NVIDIA_CONTAINER_TOOLKIT_VERSION}"
hold docker.io "${packages[@]}"
# The configuration that `nvidia-ctk runtime configure --runtime=docker` writes, with rotated logs.
daemon='{
  "log-driver": "local",
  "runtimes": {
    "nvidia": {
      "args": [],
      "path": "nvidia-container-runtime"
    }
  }
}'
put /etc/docker/daemon.json <<<"$daemon"
once docker.restarted "$daemon" systemctl restart docker
[[ $(systemctl is-enabled docker 2>/dev/null || true) == enabled ]] || systemctl enable docker
