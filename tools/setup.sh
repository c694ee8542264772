#!/usr/bin/env bash
# Create the virtual environment from requirements/dev.lock. Usage: tools/setup.sh PYTHON VENV [asked]
# With `asked`, PYTHON was given by the user: it is used, or an error. Without, another one may replace it.
# `tools/setup.sh --current PYTHON VENV [asked]` prints `yes` if VENV runs, and was made with an asked PYTHON.
# pip installs uv, and uv installs the rest. It is several times faster than pip and byte-compiles the
# packages, so that the command does not have to compile them at each start.
set -euo pipefail

NEEDED_MB=500 # .venv takes 250 MB, and the cache of uv half of that

check=
if [ "$1" = --current ]; then check=yes; shift; fi
python=$1 venv=$2 asked=${3:-}
started=$SECONDS
say() { printf '[setup %3ss] %s\n' "$((SECONDS - started))" "$*" >&2; }
fail() { printf 'error[R-SETUP-%s]: %s\n  why: %s\n  fix: %s\n' "$@" >&2; exit 3; }

# An interpreter, whatever starts it: a virtual environment and its base are the same.
identity() { "$1" -c 'import sys; print(sys.version, sys.base_prefix)' 2>/dev/null; }

if [ -n "$check" ]; then
  made=$(identity "$venv/bin/python") || exit 0
  [ -z "$asked" ] || [ "$made" = "$(identity "$python")" ] || exit 0
  echo yes
  exit 0
fi

# What `sudo make` wrote is closed to the user; a clone of somebody else is closed from the start.
folder=$(cd "$(dirname "$venv")" && pwd) me=$(id -un)
owner() { stat -c %U "$1" 2>/dev/null || stat -f %Su "$1"; }
for each in "$folder" "$folder/$(basename "$venv")"; do
  { [ -e "$each" ] && [ ! -w "$each" ]; } || continue
  why="it belongs to $(owner "$each"), and you are $me"
  fix="sudo chown -R $me '$folder', then run the command again"
  [ -w "$folder" ] || fix="copy the clone to a folder of yours, and run make there: cp -R '$folder' ~/"
  [ "$(owner "$each")" != "$me" ] || why="its permissions or its file system do not allow it"
  fail FOLDER "cannot write to $each" "$why" "$fix"
done

# Print why an interpreter cannot be used, and nothing if it can. Python 2 can run this, too.
problem() {
  command -v "$1" >/dev/null || { echo "there is no such program"; return; }
  "$1" -c '
import platform, sys
name, version = platform.python_implementation(), platform.python_version()
if name != "CPython":
    print("it is %s %s, and the packages are built for CPython only" % (name, version))
elif not (3, 11) <= sys.version_info[:2] <= (3, 14):
    print("it is Python %s" % version)' 2>/dev/null || echo "it does not start"
}

found=$(problem "$python")
if [ -n "$found" ] && [ -z "$asked" ]; then
  for candidate in python3.13 python3.12 python3.11 python3.14; do
    [ -n "$(problem "$candidate")" ] || { say "$python cannot be used: $found"; python=$candidate found=; break; }
  done
fi
[ -z "$found" ] || fail PYTHON "$python cannot be used; Python 3.11, 3.12, 3.13 or 3.14 is needed" "$found" \
  "install one of them, or name it: make train PYTHON=/path/to/python3.13"
"$python" -c 'import ensurepip, venv' 2>/dev/null || {
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  install="install the modules venv and ensurepip of $python"
  ! command -v apt-get >/dev/null || install="sudo apt-get install python$version-venv"
  fail VENV "$python cannot create virtual environments" "its modules venv and ensurepip are not installed" \
    "$install, or name another Python: make train PYTHON=/path/to/python3.13"
}

free_mb=$(($(df -Pk "$folder" | awk 'NR == 2 {print $4}') / 1024))
[ "$free_mb" -ge "$NEEDED_MB" ] || fail DISK "too little disk space for $venv" \
  "the disk of $folder has $free_mb MB free, and the packages need $NEEDED_MB MB" \
  "free space on that disk, then run the command again"
# uv stops without a cache that it can write, and pip does not.
cache=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/uv}
mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] || export UV_NO_CACHE=1

rm -f "$venv/.ready" "$venv/.ready-infra"
say "once: 50 MB of packages; the first training adds 170 MB (Keras, JAX)"
say "creating $venv with $("$python" --version)"
"$python" -m venv --clear "$venv" || fail VENV "could not create $venv" "$python -m venv failed (see above)" \
  "correct its cause, or name another Python: make train PYTHON=/path/to/python3.13"

# The pinned uv, verified by the hashes of the lock file like everything else.
pin=$(mktemp)
trap 'rm -f "$pin"' EXIT
awk '/^uv==/ {on=1} on {print} on && !/\\$/ {exit}' requirements/dev.lock >"$pin"
say "installing uv"
not_installed() {
  fail INSTALL "could not install $1" "$2 failed (see above)" \
    "check the network, the proxy and the free disk space, then run the command again"
}
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$pin" ||
  not_installed uv pip

say "installing the pinned packages"
uv_install() { "$venv/bin/uv" pip install --quiet --compile-bytecode --python "$venv/bin/python" "$@"; }
uv_install --require-hashes -r requirements/dev.lock || not_installed "the pinned packages" uv
uv_install --no-deps --no-build-isolation --editable ./batch_emulator --editable . || not_installed "runner and batch_emulator" uv
"$venv/bin/python" -m compileall -q runner batch_emulator
say "done; the environment is $(du -sh "$venv" | cut -f1)"
touch "$venv/.ready"
