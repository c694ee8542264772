#!/usr/bin/env bash
# Check whether this node can train: print one line per check, and exit with 1 if any fails. It takes
# seconds. Installed as /opt/runner/bin/node-health, to be called by a start task or by hand.
#   NODE_HEALTH_GPUS       number of GPUs to expect (default: at least one; 0 for a CPU node)
#   NODE_HEALTH_DISK_GIB   free space to expect in AZ_BATCH_NODE_ROOT_DIR, or / (default 10)
set -uo pipefail
IMAGE_ROOT=${IMAGE_ROOT:-}
want_gpus=${NODE_HEALTH_GPUS:-}
want_gib=${NODE_HEALTH_DISK_GIB:-10}
bad=0

good() { echo "ok   $1"; }
poor() {
  echo "bad  $1"
  bad=1
}

gpus() {
  local listed count
  # nvidia-smi hangs if a GPU has fallen off the bus (Xid 79).
  if ! listed=$(timeout 60 nvidia-smi --query-gpu=index,ecc.errors.uncorrected.volatile.total \
    --format=csv,noheader 2>&1); then
    poor "gpu: nvidia-smi: ${listed:-no answer within 60 s}"
    return
  fi
  count=$(grep -c . <<<"$listed")
  if ((count < ${want_gpus:-1})) || { [[ -n $want_gpus ]] && ((count != want_gpus)); }; then
    poor "gpu: found $count, expected ${want_gpus:-at least 1}"
  elif grep -qE ', *[1-9][0-9]*$' <<<"$listed"; then
    poor "gpu: uncorrectable memory errors: ${listed//$'\n'/; }"
  else
    good "gpu: $count"
  fi
}

disk() {
  local at=${AZ_BATCH_NODE_ROOT_DIR:-/} free
  free=$(df --output=avail --block-size=1G "$at" 2>/dev/null | tail -n 1 | tr -d ' ')
  if [[ ! $free =~ ^[0-9]+$ ]]; then
    poor "disk: cannot read the free space of $at"
  elif ((free < want_gib)); then
    poor "disk: $free GiB free in $at, expected at least $want_gib GiB"
  else
    good "disk: $free GiB free"
  fi
}

# GPU faults in the kernel's log. Without the permission to read it, none are found.
xid() {
  local found
  found=$(dmesg 2>/dev/null | grep -E 'NVRM: Xid .*: (48|63|64|74|79|94|95),' | tail -n 1)
  if [[ -n $found ]]; then poor "xid: $found"; else good "xid: no GPU fault in the kernel's log"; fi
}

case $want_gpus in
  0) ;;
  '' | [1-9] | [1-9][0-9])
    gpus
    xid
    ;;
  *) poor "NODE_HEALTH_GPUS is '$want_gpus', not a number" ;;
esac
if [[ $want_gib =~ ^[0-9]+$ ]]; then disk; else poor "NODE_HEALTH_DISK_GIB is '$want_gib', not a number"; fi
exit "$bad"
