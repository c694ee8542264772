#!/usr/bin/env bash
# Run `make test` with the newest supported Python, in a copy of this tree. It says so if that Python is not here.
set -euo pipefail

newest=3.14
is_newest() { [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$newest" ]; }
if is_newest .venv/bin/python; then echo "Python $newest: .venv has it already"; exit 0; fi
for python in "python$newest" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$newest."*/bin/python3 ""; do
  ! is_newest "$python" || break
done
[ -n "$python" ] || { echo "Python $newest: not tried, it is not on this machine"; exit 0; }

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar -cf - --exclude=./.venv --exclude=./.git --exclude=./.cache --exclude=./.hypothesis --exclude=__pycache__ --exclude=./outputs . |
  tar -xf - -C "$copy"
mkdir -p .cache
ln -s "$PWD/.cache" "$copy/.cache" # the downloads of tests
make -C "$copy" test PYTHON="$python"
