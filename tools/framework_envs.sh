#!/usr/bin/env bash
# Build the environments of the framework tests in .cache/frameworks, once per list of packages, and
# print the variables that name their interpreters. Usage: eval "$(tools/framework_envs.sh [NAME…])"
# NAME is keras2, tensorflow, chainer, torch or aim; without one, all are built. An environment that cannot
# be built is named on stderr, its variable is not printed, and its tests are skipped. With --built nothing is built.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${FRAMEWORK_ENVS:-$PWD/.cache/frameworks}
uv=$PWD/.venv/bin/uv
python=${PYTHON:-$PWD/.venv/bin/python}
started=$SECONDS
say() { printf '[frameworks %3ss] %s\n' "$((SECONDS - started))" "$*" >&2; }

# Print the groups of packages, one a line. A later group is built with what the earlier ones installed.
packages() {
  case $1 in
    keras2) echo "tensorflow-cpu==2.15.*" ;;
    tensorflow) echo "tensorflow-cpu keras" ;;
    # Its build imports pkg_resources, and its code needs types that NumPy 1.24 has removed.
    chainer) printf '%s\n' "numpy<1.24 setuptools<60 wheel" "--no-build-isolation chainer==7.8.1" ;;
    torch) echo "torch transformers accelerate lightning h5py safetensors" ;;
    aim) echo "aim" ;;
    *) say "unknown environment '$1': use keras2, tensorflow, chainer, torch or aim"; exit 2 ;;
  esac
}

build() {
  local env=$1 group words
  rm -rf "$env"
  "$uv" venv --quiet --python "$python" "$env" || return
  while read -r group; do
    read -ra words <<<"$group"
    "$uv" pip install --quiet --python "$env/bin/python" "${words[@]}" || return
  done <"$2"
}

is_building=1
[[ ${1:-} != --built ]] || { is_building=; shift; }
[[ -x $uv ]] || { say "no .venv: run make setup first"; exit 3; }
[[ $# -gt 0 ]] || set -- keras2 tensorflow chainer torch aim
mkdir -p "$folder"
for name in "$@"; do
  wanted=$folder/$name.wanted ready=$folder/$name.ready
  packages "$name" >"$wanted"
  if ! cmp -s "$wanted" "$ready"; then
    [[ $is_building ]] || continue
    say "building $name"
    rm -f "$ready"
    build "$folder/$name" "$wanted" || { say "cannot build $name: its tests are skipped"; continue; }
    cp "$wanted" "$ready"
    say "$name has $(du -sh "$folder/$name" | cut -f1)"
  fi
  printf 'export %s_PYTHON=%q\n' "${name^^}" "$folder/$name/bin/python"
done
