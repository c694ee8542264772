#!/usr/bin/env bash
# Make this Ubuntu machine the VM image: all steps in order, or only those named.
#   sudo ./provision.sh [STEP ...]        ./provision.sh --list
# Each step may be repeated; the first that fails ends it, with the step's name.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

steps=()
for file in "$here"/steps/[0-9][0-9]-*.sh; do
  name=${file##*/[0-9][0-9]-}
  steps+=("${name%.sh}")
done

if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${steps[@]}"
  exit 0
fi
for step in "${@:-${steps[@]}}"; do
  file=$(compgen -G "$here/steps/[0-9][0-9]-$step.sh") || {
    printf 'error[R-IMAGE-STEP]: there is no step %s\n  why: the steps are %s\n  fix: %s --list\n' \
      "$step" "${steps[*]}" "$0" >&2
    exit 2
  }
  bash "$file"
done
