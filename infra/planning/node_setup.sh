#!/usr/bin/env bash
# Makes a node ready for runner's tasks. Batch runs it at every boot, before any task: it may find
# its own work of last time. infra/planning/node_setup.py puts these into the start task:
#   RUNNER_GPUS      how many GPUs the VM size has
#   RUNNER_GPU_WAIT  seconds that a driver may need to come up
#   RUNNER_UV        base64: a requirements file that pins uv by its hashes
#   RUNNER_PRELOAD   recipe:file:python:text of every requirements file, separated by blanks, the
#                    last two in base64; python may be empty
#   RUNNER_START_SCRIPT  base64, may be missing: the pool's own script
# RUNNER_PAUSE may change the seconds between tries.
set -euo pipefail
umask 022

# Tasks write everywhere below the shared folder, and this script runs as root: it uses nothing of
# that after the first task. What it must be able to trust stays below the start task's folder.
# https://learn.microsoft.com/azure/batch/files-and-directories (read 2026-11-21)
home=$AZ_BATCH_NODE_SHARED_DIR/runner
own=$AZ_BATCH_NODE_STARTUP_DIR/runner
say() { printf '[node setup %3ss] %s\n' "$SECONDS" "$*"; }
complain() { printf '%s: %s\n  why: %s\n  fix: %s\n' "$@" >&2; }
fail() {
  complain "error[$1]" "${@:2}"
  exit 1
}

# The GPUs that answer, one a line; fails with the driver's own words.
gpus() {
  command -v nvidia-smi >/dev/null || { echo "nvidia-smi is not on this node"; return 1; }
  # A driver that lost its GPU can hang for ever.
  timeout --kill-after=5 60 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1 || {
    echo "nvidia-smi exited with code $?"
    return 1
  }
}

wait_for_gpus() {
  local found count
  while true; do
    if found=$(gpus); then
      # Warnings stand among the GPUs, and one that is gone has no driver version.
      count=$(grep -cE ', [0-9]+(\.[0-9]+)+$' <<<"$found" || true)
      ((count < RUNNER_GPUS)) || break
      found="$count of $RUNNER_GPUS GPUs answer: ${found:-none}"
    fi
    ((SECONDS < RUNNER_GPU_WAIT)) || fail R-NODE-GPU "the GPU driver of this node does not work" \
      "$(tr '\n' ' ' <<<"$found")" \
      "reimage the node; if the whole pool has this, take another image, or a vm_size with a GPU"
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

# Ubuntu's own images lack the part of Python that makes virtual environments.
make_venv() {
  if ! python3 -c 'import ensurepip' 2>/dev/null && command -v apt-get >/dev/null; then
    say "installing python3-venv"
    export DEBIAN_FRONTEND=noninteractive
    try 3 eval 'apt-get -qq -o DPkg::Lock::Timeout=300 update >/dev/null &&
      apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends python3-venv >/dev/null' || true
  fi
  python3 -m venv "$1" || fail R-NODE-PYTHON "this node cannot make a Python environment" \
    "python3 or its venv module is missing (see above)" "use an image with python3 and python3-venv"
}

# try TIMES COMMAND...: networks of new nodes are not always there at once.
try() {
  local left=$1
  shift
  until "$@"; do
    ((--left)) || return 1
    sleep "${RUNNER_PAUSE:-5}"
  done
}

# What recipes need is downloaded before the first task. A task would do the same for itself: so
# nothing of this stops the node.
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
      "the first task that needs it tries again; look at its environment step if that fails too"
  done
  rm -rf "$folder"
}

# What the agent takes for recipes that name no Python (runner/node/environment/virtual_env.py).
usual_python() {
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' && command -v python3 || echo 3.12
}

# The cache is the agent's: it keeps uv's files in cache/uv and interpreters in cache/python.
preload_file() {
  local folder=$1 file=$2 python=$3 cache=$home/cache
  local -x UV_CACHE_DIR=$cache/uv UV_PYTHON_INSTALL_DIR=$cache/python UV_NO_PROGRESS=1 NO_COLOR=1
  # Beside the environments to come: the same file system, so that uv links instead of copying.
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

# The shared folder as the first task finds it; a half-made one of a failed try goes first.
prepare_home() {
  rm -rf "$home"
  mkdir -p "$home/bin" "$home/cache" "$home/envs"
  [[ ! -e $own/uv ]] || ln -s "$own/uv/bin/uv" "$home/bin/uv"
  [[ -z "${RUNNER_PRELOAD:-}" ]] || preload
  # Tasks run as another user, and write where the start task wrote.
  chmod a+rwx "$home" "$home/envs"
  chmod -R a+rwX "$home/cache"
  mkdir -p "$own"
  touch "$own/handed-over"
}

# As root and at every boot, like this one: it has to be able to find its own work of last time.
run_own_script() {
  local script=$own/start-script
  mkdir -p "$own"
  base64 -d <<<"$RUNNER_START_SCRIPT" >"$script"
  chmod 700 "$script"
  say "the pool's start_script begins"
  env -u RUNNER_START_SCRIPT -u RUNNER_NODE_SETUP "$script" || fail R-NODE-SCRIPT \
    "the pool's start_script failed" "it ended with code $? (see above)" \
    "correct the script, then runner up; nodes that are there take it when they are rebooted"
}

((RUNNER_GPUS == 0)) || wait_for_gpus
prepare_uv
if [[ -e $own/handed-over ]]; then
  say "tasks have used $home: it stays as it is"
else
  prepare_home
fi
[[ -z "${RUNNER_START_SCRIPT:-}" ]] || run_own_script
say "ready"
