#!/usr/bin/env bash
# Install cuDNN 9 for CUDA 12, from the repository that the step cuda has added.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin cudnn "set CUDNN_VERSION in versions.env to a version of: apt-cache madison libcudnn9-cuda-12"

packages=(libcudnn9-cuda-12 libcudnn9-headers-cuda-12 libcudnn9-dev-cuda-12)
want "${packages[@]/%/=$CUDNN_VERSION}"
hold "${packages[@]}"
