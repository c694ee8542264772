#!/usr/bin/env bash
# Prepare a node for the tasks of runner. Batch runs this script at every boot, before any task, so
# the results of an earlier run may exist. infra/runner_infra/planning/node_setup.py sets these variables:
#   RUNNER_GPUS      number of GPUs of the VM size
#   RUNNER_GPU_WAIT  maximum time until the driver is loaded, in seconds
#   RUNNER_UV        a requirements file that pins uv by its hashes, in base64
#   RUNNER_PRELOAD   recipe:file:python:text of each requirements file, separated by spaces; python
#                    and text are in base64, and python may be empty; may be unset
#   RUNNER_START_SCRIPT  the script of the pool, in base64; may be unset
# RUNNER_PAUSE overrides the time between two tries, in seconds.
set -euo pipefail
umask 022

# Tasks may write everywhere below the shared folder, and this script runs as root, so after the
# first task it uses no files of that folder. Trusted files are below the start task's folder.
# https://learn.microsoft.com/azure/batch/files-and-directories (read 2026-11-21)
home=$AZ_BATCH_NODE_SHARED_DIR/runner
own=$AZ_BATCH_NODE_STARTUP_DIR/runner
say() { printf '[node setup %3ss] %s\n' "$SECONDS" "$*"; }
complain() { printf '%s: %s\n  why: %s\n  fix: %s\n' "$@" >&2; }
fail() {
  complain "error[$1]" "${@:2}"
  exit 1
}

# Print the GPUs that respond, one per line. On failure, print the message of the driver.
gpus() {
  command -v nvidia-smi >/dev/null || { echo "nvidia-smi is not on this node"; return 1; }
  # nvidia-smi can hang if the driver has lost a GPU.
  timeout --kill-after=5 60 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1 || {
    echo "nvidia-smi exited with code $?"
    return 1
  }
}

wait_for_gpus() {
  local found count
  while true; do
    if found=$(gpus); then
      # The output may contain warnings, and GPUs that are lost, which have no driver version.
      count=$(grep -cE ', [0-9]+(\.[0-9]+)+$' <<<"$found" || true)
      ((count < RUNNER_GPUS)) || break
      found="$count of $RUNNER_GPUS GPUs respond: ${found:-none}"
    fi
    ((SECONDS < RUNNER_GPU_WAIT)) || fail R-NODE-GPU "the GPU driver of this node does not work" \
      "$(tr '\n' ' ' <<<"$found")" \
      "reimage the node; if all nodes of the pool fail, use another image, or a vm_size with a GPU"
    sleep "${RUNNER_PAUSE:-5}"
  done
  say "$RUNNER_GPUS GPU: $(tr '\n' ';' <<<"$found")"
}

# The agent looks for uv in $home/bin, then on PATH.
prepare_uv() {
  local pin venv=$own/uv
  if command -v uv >/dev/null; then
    say "$(uv --version) is part of the image"
    return
  fi
  pin=$(base64 -d <<<"$RUNNER_UV")
  if [[ "$(cat "$venv/pin" 2>/dev/null)" != "$pin" ]] || ! "$venv/bin/uv" --version >/dev/null; then
    rm -rf "$venv"
    mkdir -p "$own"
    make_venv "$venv"
    printf '%s\n' "$pin" >"$venv.txt"
    try 3 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
      --no-deps --only-binary :all: --require-hashes --requirement "$venv.txt" ||
      fail R-NODE-UV "could not install uv" "pip could not download the pinned version (see above)" \
        "let the pool's network reach the Python package index, or use the stack's own image"
    mv "$venv.txt" "$venv/pin"
  fi
  PATH=$venv/bin:$PATH
  say "$(uv --version) is installed"
}

# Ubuntu's images lack the package that creates virtual environments.
make_venv() {
  if ! python3 -c 'import ensurepip' 2>/dev/null && command -v apt-get >/dev/null; then
    say "installing python3-venv"
    export DEBIAN_FRONTEND=noninteractive
    try 3 eval 'apt-get -qq -o DPkg::Lock::Timeout=300 update >/dev/null &&
      apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends python3-venv >/dev/null' || true
  fi
  python3 -m venv "$1" || fail R-NODE-PYTHON "cannot create a Python environment on this node" \
    "python3 or its venv module is missing (see above)" "use an image with python3 and python3-venv"
}

# try TIMES COMMAND...: repeat a command, because the network of a new node may not work at first.
try() {
  local left=$1
  shift
  until "$@"; do
    ((--left)) || return 1
    sleep "${RUNNER_PAUSE:-5}"
  done
}

# Download the packages of recipes before the first task. A failure does not stop the node, because
# a task downloads missing packages itself.
preload() {
  local entry recipe file python text folder
  folder=$(mktemp -d)
  for entry in $RUNNER_PRELOAD; do
    IFS=: read -r recipe file python text <<<"$entry"
    mkdir -p "$folder/$recipe"
    base64 -d <<<"$text" >"$folder/$recipe/$file"
  done
  for entry in $RUNNER_PRELOAD; do
    IFS=: read -r recipe file python text <<<"$entry"
    python=$(base64 -d <<<"$python")
    python=${python:-$(usual_python)}
    preload_file "$folder/$recipe" "$file" "$python" || complain \
      "warning[R-NODE-PRELOAD]" "could not preload $file of recipe $recipe" \
      "uv could not install it for Python $python (see above)" \
      "the first task that needs it tries again; if that fails too, see its environment stage"
  done
  rm -rf "$folder"
}

# Print the Python of recipes without `python`, as runner/node/environment/virtual_env.py selects it.
usual_python() {
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' && command -v python3 || echo 3.12
}

# Install a requirements file into the cache of the agent: cache/uv for packages, and cache/python
# for interpreters.
preload_file() {
  local folder=$1 file=$2 python=$3 cache=$home/cache
  local -x UV_CACHE_DIR=$cache/uv UV_PYTHON_INSTALL_DIR=$cache/python UV_NO_PROGRESS=1 NO_COLOR=1
  # In the same file system as the environments of tasks, so that uv links files and does not copy.
  local trial=$home/preloading
  rm -rf "$trial"
  if ! { uv venv --quiet --no-project --python "$python" "$trial" &&
    (cd "$folder" && try 2 uv pip install --quiet --python "$trial/bin/python" -r "$file"); }; then
    rm -rf "$trial"
    return 1
  fi
  rm -rf "$trial"
  say "${folder##*/}/$file is in the cache"
}

# Create the shared folder for the first task. An incomplete one of an earlier boot is deleted.
prepare_home() {
  rm -rf "$home"
  mkdir -p "$home/bin" "$home/cache" "$home/envs"
  # A copy, because containers do not have the folders of the node's image.
  cp "$(command -v uv)" "$home/bin/uv"
  [[ -z "${RUNNER_PRELOAD:-}" ]] || preload
  # Tasks run as another user, and write to the folders that the start task created.
  chmod a+rwx "$home" "$home/envs"
  chmod -R a+rwX "$home/cache"
  mkdir -p "$own"
  touch "$own/handed-over"
}

# Run the script of the pool as root, at every boot. It must accept the results of an earlier run.
run_own_script() {
  local script=$own/start-script
  mkdir -p "$own"
  base64 -d <<<"$RUNNER_START_SCRIPT" >"$script"
  chmod 700 "$script"
  say "running the pool's start_script"
  env -u RUNNER_START_SCRIPT -u RUNNER_NODE_SETUP "$script" || fail R-NODE-SCRIPT \
    "the pool's start_script failed" "it exited with code $? (see above)" \
    "correct the script, and run \`runner up\`; existing nodes use it after a reboot"
}

((RUNNER_GPUS == 0)) || wait_for_gpus
prepare_uv
if [[ -e $own/handed-over ]]; then
  say "tasks have used $home: it is not changed"
else
  prepare_home
fi
[[ -z "${RUNNER_START_SCRIPT:-}" ]] || run_own_script
say "ready"
