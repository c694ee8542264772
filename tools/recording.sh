#!/usr/bin/env bash
# Record `make train` as docs/make-train.svg, the picture in the README.
# Usage: tools/recording.sh BIN TERMTOSVG   (BIN is .venv/bin)
# The services have a RUNNER_HOME of their own below .cache. It keeps Azurite and the packages of the
# recipe, so that a second recording does not download them.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$1 termtosvg=$2
work=$PWD/.cache/recording
export RUNNER_HOME=$work/home RUNNER_TARGET=local
mkdir -p "$RUNNER_HOME"
"$bin/runner" local reset --yes >&2 # the model of the recording is version 1
trap '"$bin/runner" local down >&2' EXIT
"$bin/python" -m tools.recording "$work/make-train.cast" make train
"$termtosvg" render "$work/make-train.cast" "$work/make-train.svg" -t window_frame -m 200
mv "$work/make-train.svg" docs/make-train.svg
