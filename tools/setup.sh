#!/usr/bin/env bash
# Create the virtual environment from requirements/dev.lock. Usage: tools/setup.sh PYTHON VENV
# pip installs uv, and uv installs the rest. It is several times faster than pip and byte-compiles the
# packages, so that the command does not have to compile them at each start.
set -euo pipefail

python=$1 venv=$2
started=$SECONDS
say() { printf '[setup %3ss] %s\n' "$((SECONDS - started))" "$*" >&2; }
fail() { printf 'error[R-SETUP]: %s\n  why: %s\n  fix: %s\n' "$@" >&2; exit 3; }

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
if ! usable "$python"; then
  for candidate in python3.13 python3.12 python3.11 python3.14; do
    if usable "$candidate"; then python=$candidate; break; fi
  done
fi
usable "$python" || fail "Python 3.11 or newer is needed" \
  "$python is $("$python" --version 2>&1 || echo 'not there')" \
  "install python3.11+, or name it: make train PYTHON=/path/to/python3.12"

rm -f "$venv/.ready"
say "once: about 50 MB of packages; the first training adds 170 MB (Azurite, Keras and JAX)"
say "creating $venv with $("$python" --version)"
"$python" -m venv --clear "$venv" || fail "could not create $venv" \
  "python -m venv failed (on Debian and Ubuntu it lives in a package of its own)" \
  "sudo apt-get install python3-venv, then run the command again"

# The pinned uv, verified by the hashes of the lock file like everything else.
pin=$(mktemp)
trap 'rm -f "$pin"' EXIT
awk '/^uv==/ {on=1} on {print} on && !/\\$/ {exit}' requirements/dev.lock >"$pin"
say "installing uv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$pin" ||
  fail "could not install uv" "pip could not download it (see above)" "check the network or proxy, then run the command again"

say "installing the pinned packages"
uv_install() { "$venv/bin/uv" pip install --quiet --compile-bytecode --python "$venv/bin/python" "$@"; }
uv_install --require-hashes -r requirements/dev.lock
uv_install --no-deps --editable .
"$venv/bin/python" -m compileall -q runner batch_emulator
say "done; the environment is $(du -sh "$venv" | cut -f1)"
touch "$venv/.ready"
