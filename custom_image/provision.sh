#!/usr/bin/env bash
# Install the VM image on this Ubuntu machine: run all steps in order, or the given ones.
#   sudo ./provision.sh [STEP ...]        ./provision.sh --list
# Steps are idempotent. The first failing step ends the script with an error that names it.
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
    printf 'error[R-IMAGE-STEP]: unknown step %s\n  why: the steps are %s\n  fix: %s --list\n' \
      "$step" "${steps[*]}" "$0" >&2
    exit 2
  }
  bash "$file"
done
