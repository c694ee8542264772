#!/usr/bin/env bash
# Install uv with the hashes in uv.txt.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin uv "set UV_VERSION in versions.env and the lines of uv.txt to the version in requirements/dev.lock"

want python3-venv
home=$IMAGE_ROOT$PREFIX/uv
if [[ ! -x $home/bin/uv || $(cat "$home/requirements" 2>/dev/null) != "$(cat "$IMAGE_DIR/uv.txt")" ]]; then
  rm -rf "$home"
  python3 -m venv "$home"
  "$home/bin/python" -m pip install --quiet --no-deps --require-hashes --only-binary :all: \
    --requirement "$IMAGE_DIR/uv.txt"
  cp "$IMAGE_DIR/uv.txt" "$home/requirements"
fi
have=$("$home/bin/uv" --version)
[[ $have == "uv $UV_VERSION"* ]] || refuse "uv.txt installs $have, but UV_VERSION in versions.env is $UV_VERSION"
mkdir -p "$IMAGE_ROOT/usr/local/bin"
for name in uv uvx; do
  link=$IMAGE_ROOT/usr/local/bin/$name
  [[ $(readlink "$link" 2>/dev/null || true) == "$PREFIX/uv/bin/$name" ]] ||
    ln -sfn "$PREFIX/uv/bin/$name" "$link"
done
