#!/usr/bin/env bash
# Compare the distributions in dist/ and CHANGELOG.md with a tag. Usage: tools/check_release.sh v0.2.0
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1#v}
fail() { printf 'error[R-RELEASE]: %s\n  why: %s\n  fix: %s\n' "$@" >&2; exit 3; }

for name in batch-emulator azure-batch-runner; do
  for file in "${name//-/_}-$version-py3-none-any.whl" "${name//-/_}-$version.tar.gz"; do
    [ -f "dist/$name/$file" ] || fail "dist/$name/$file does not exist" \
      "dist/$name has: $(find "dist/$name" -type f -not -name '.*' -printf '%f ' 2>/dev/null || true)" \
      "set the version $version in pyproject.toml and batch_emulator/__init__.py, then run make dist"
  done
done
grep -qF "## [$version]" CHANGELOG.md || fail "CHANGELOG.md has no section for $version" \
  "the notes of a release are the lines below '## [$version]'" \
  "move the lines of Unreleased to a section '## [$version] - YYYY-MM-DD'"
echo "the distributions and the changelog are those of $version"
