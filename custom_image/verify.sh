#!/usr/bin/env bash
# Check that the packages of the image are installed and work on a GPU. All checks run, also after a
# failure. This is the validation step of the image build; it changes nothing.
#   sudo ./verify.sh [CHECK ...]          ./verify.sh --list
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
IMAGE_ROOT=${IMAGE_ROOT:-}
PATH=$IMAGE_ROOT/usr/local/cuda/bin:$PATH
export LC_ALL=C.UTF-8
# shellcheck source=versions.env
source "$here/versions.env"

# A check prints what it found and returns 0, or prints the problem and returns 1.

check_driver() {
  local found
  found=$(timeout 60 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1) || {
    echo "nvidia-smi: ${found:-no answer}"
    return 1
  }
  [[ -n $found ]] || { echo "nvidia-smi finds no GPU"; return 1; }
  [[ $found == *", $NVIDIA_DRIVER_BRANCH."* ]] || {
    echo "the driver is not from branch $NVIDIA_DRIVER_BRANCH: $found"
    return 1
  }
  echo "${found//$'\n'/; }"
}

check_cuda() {
  local release=${CUDA_SERIES/-/.} found
  found=$(nvcc --version 2>&1) || { echo "nvcc: $found"; return 1; }
  [[ $found == *"release $release,"* ]] || {
    echo "nvcc is not from CUDA $release: ${found##*$'\n'}"
    return 1
  }
  found=$(nvcc -O1 -o "$scratch/square" "$here/probe/square.cu" 2>&1) || {
    echo "the test kernel does not compile: $found"
    return 1
  }
  found=$(timeout 120 "$scratch/square" 2>&1) || { echo "the test kernel does not run: $found"; return 1; }
  echo "CUDA $release compiles and runs a kernel: $found"
}

check_cudnn() {
  local found major minor patch
  found=$(python3 "$here/probe/cudnn_version.py" 2>&1) || {
    echo "cuDNN does not load: ${found##*$'\n'}"
    return 1
  }
  IFS=. read -r major minor patch _ <<<"$CUDNN_VERSION"
  [[ $found == "$((major * 10000 + minor * 100 + patch))" ]] || {
    echo "the installed cuDNN is $found, versions.env has $CUDNN_VERSION"
    return 1
  }
  echo "cuDNN $major.$minor.$patch"
}

# The container image is made from this machine's own shell and libraries, so no registry is needed.
# nvidia-smi and the driver's libraries are not in it: NVIDIA's toolkit must add them.
check_container() {
  local found files
  files=$(probe_files) || { echo "cannot list the libraries of sh and nvidia-smi"; return 1; }
  found=$(tar --create --dereference --directory / --files-from - <<<"$files" 2>"$scratch/tar" |
    docker import - runner-image-probe 2>&1) || {
    echo "docker import: $found $(<"$scratch/tar")"
    return 1
  }
  found=$(timeout 120 docker run --rm --network none --gpus all \
    --env NVIDIA_DRIVER_CAPABILITIES=compute,utility runner-image-probe /usr/bin/nvidia-smi -L 2>&1)
  local code=$?
  docker image rm --force runner-image-probe >/dev/null 2>&1
  ((code == 0)) && [[ $found == *"GPU 0"* ]] || {
    echo "no GPU in a container: ${found:-no answer}"
    return 1
  }
  echo "in a container: ${found%%$'\n'*}"
}

# Print the paths of a shell and of the libraries that it and nvidia-smi need, without the leading /.
probe_files() {
  local tool
  tool=$(command -v nvidia-smi) || return 1
  { echo /bin/sh && ldd /bin/sh "$tool" | grep -o '/[^ :)]*'; } | grep -vxF "$tool" |
    sed 's|^/||' | sort -u
}

check_tools() {
  local found bad=()
  found=$(nvidia-ctk --version 2>&1) || bad+=("nvidia-ctk: $found")
  [[ $found == *"${NVIDIA_CONTAINER_TOOLKIT_VERSION%-*}"* ]] || bad+=("nvidia-ctk is ${found%%$'\n'*}")
  found=$(uv --version 2>&1) || bad+=("uv: $found")
  [[ $found == "uv $UV_VERSION"* ]] || bad+=("uv is $found")
  found=$(blobfuse2 --version 2>&1) || bad+=("blobfuse2: $found")
  [[ $found == *"$BLOBFUSE2_VERSION"* ]] || bad+=("blobfuse2 is $found")
  ((${#bad[@]} == 0)) || { printf '%s; ' "${bad[@]}"; echo; return 1; }
  echo "nvidia-ctk ${NVIDIA_CONTAINER_TOOLKIT_VERSION%-*}, uv $UV_VERSION, blobfuse2 $BLOBFUSE2_VERSION"
}

check_holds() {
  local held package
  held=$(apt-mark showhold 2>&1) || { echo "apt-mark: $held"; return 1; }
  for package in "linux-image-$(uname -r)" "linux-modules-nvidia-$NVIDIA_DRIVER_BRANCH-server-$(uname -r)" \
    "nvidia-utils-$NVIDIA_DRIVER_BRANCH-server" "cuda-toolkit-$CUDA_SERIES" libcudnn9-cuda-12; do
    grep -qxF "$package" <<<"$held" || { echo "$package is not on hold"; return 1; }
  done
  [[ $(systemctl is-enabled unattended-upgrades.service 2>/dev/null) == masked ]] || {
    echo "unattended upgrades are enabled"
    return 1
  }
  echo "kernel, driver, CUDA and cuDNN are on hold; no unattended upgrades"
}

check_health() {
  local found
  found=$("$IMAGE_ROOT/opt/runner/bin/node-health" 2>&1) || { echo "${found//$'\n'/; }"; return 1; }
  echo "node-health passes"
}

checks=(driver cuda cudnn container tools holds health)
if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${checks[@]}"
  exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=()
for check in "${@:-${checks[@]}}"; do
  if [[ " ${checks[*]} " != *" $check "* ]]; then
    text="unknown check; use one of: ${checks[*]}" code=1
  else
    text=$("check_$check")
    code=$?
  fi
  if ((code == 0)); then
    echo "ok      $check: $text"
  else
    echo "FAILED  $check: $text"
    failed+=("$check")
  fi
done
if ((${#failed[@]})); then
  {
    echo "error[R-IMAGE-VERIFY]: checks failed: ${failed[*]}"
    echo "  why: see the lines FAILED above"
    echo "  fix: $here/provision.sh, then $here/verify.sh ${failed[*]}"
  } >&2
  exit 1
fi
