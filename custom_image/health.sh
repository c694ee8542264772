#!/usr/bin/env bash
# Is this node fit to train? One line for each check, exit 1 if any is bad; takes seconds.
# Installed as /opt/runner/bin/node-health; a start task may call it, and so may you.
#   NODE_HEALTH_GPUS       how many GPUs there must be (default: at least one; 0 for a CPU node)
#   NODE_HEALTH_DISK_GIB   how much must be free below AZ_BATCH_NODE_ROOT_DIR, or / (default 10)
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
  # A GPU that fell off the bus makes nvidia-smi hang.
  if ! listed=$(timeout 60 nvidia-smi --query-gpu=index,ecc.errors.uncorrected.volatile.total \
    --format=csv,noheader 2>&1); then
    poor "gpu: nvidia-smi: ${listed:-no answer within a minute}"
    return
  fi
  count=$(grep -c . <<<"$listed")
  if ((count < ${want_gpus:-1})) || { [[ -n $want_gpus ]] && ((count != want_gpus)); }; then
    poor "gpu: $count seen, ${want_gpus:-1} wanted"
  elif grep -qE ', *[1-9][0-9]*$' <<<"$listed"; then
    poor "gpu: memory errors that cannot be corrected: ${listed//$'\n'/; }"
  else
    good "gpu: $count"
  fi
}

disk() {
  local at=${AZ_BATCH_NODE_ROOT_DIR:-/} free
  free=$(df --output=avail --block-size=1G "$at" 2>/dev/null | tail -n 1 | tr -d ' ')
  if [[ ! $free =~ ^[0-9]+$ ]]; then
    poor "disk: no answer for $at"
  elif ((free < want_gib)); then
    poor "disk: $free GiB free below $at, $want_gib wanted"
  else
    good "disk: $free GiB free"
  fi
}

# The kernel's log of GPU faults; a node without the right to read it has none to show.
xid() {
  local found
  found=$(dmesg 2>/dev/null | grep -E 'NVRM: Xid .*: (48|63|64|74|79|94|95),' | tail -n 1)
  if [[ -n $found ]]; then poor "xid: $found"; else good "xid: no fault of a GPU in the kernel's log"; fi
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
