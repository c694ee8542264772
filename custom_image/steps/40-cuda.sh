#!/usr/bin/env bash
# Install the CUDA toolkit without a driver. Nothing else may come from NVIDIA's repository.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin cuda "set CUDA_VERSION in versions.env to a version of: apt-cache madison cuda-toolkit-$CUDA_SERIES"

key runner-cuda "$CUDA_KEY_URL" "$CUDA_KEY_FINGERPRINT"
repository runner-cuda \
  "deb [arch=amd64 signed-by=/usr/share/keyrings/runner-cuda.gpg] $CUDA_REPOSITORY /" \
  "$(only developer.download.nvidia.com \
    'cuda-* libcublas* libcufft* libcufile* libcurand* libcusolver* libcusparse* libnpp* libnvjitlink* libnvjpeg* libnvfatbin* libcudnn9* gds-tools-* nsight-*')"
want "cuda-toolkit-$CUDA_SERIES=$CUDA_VERSION"
hold "cuda-toolkit-$CUDA_SERIES"
put /etc/profile.d/runner-cuda.sh <<'EOF'
export CUDA_HOME=/usr/local/cuda
export PATH="$CUDA_HOME/bin:$PATH"
EOF
