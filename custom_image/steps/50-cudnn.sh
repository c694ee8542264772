#!/usr/bin/env bash
# cuDNN 9 for CUDA 12, from the repository of the step before.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin cudnn "does NVIDIA's repository have CUDNN_VERSION of versions.env? apt-cache madison libcudnn9-cuda-12"

packages=(libcudnn9-cuda-12 libcudnn9-headers-cuda-12 libcudnn9-dev-cuda-12)
want "${packages[@]/%/=$CUDNN_VERSION}"
hold "${packages[@]}"
