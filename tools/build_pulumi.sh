#!/usr/bin/env bash
# Build the Pulumi CLI from Go modules, once per version, and print the folder of its programs.
# Usage: tools/build_pulumi.sh [--check]   exit code 75: it cannot be built here, and why
# Every module is verified against tools/pulumi_cli/go.sum. With --check nothing is built.
set -euo pipefail
cd "$(dirname "$0")/.."

module=github.com/pulumi/pulumi/pkg/v3
version=$(awk -v module=$module '$1 == module || $2 == module { print $NF; exit }' tools/pulumi_cli/go.mod)
home=.cache/pulumi/$version
started=$SECONDS
say() { printf '[pulumi %3ss] %s\n' "$((SECONDS - started))" "$*" >&2; }
cannot() { say "$*"; exit 75; }

if [ ! -x "$home/bin/pulumi" ]; then
  command -v go >/dev/null || cannot "no Go here: the tests of the real engine need it to build Pulumi $version"
  [ "${1:-}" != --check ] || exit 0
  mkdir -p .cache/pulumi
  exec 9>.cache/pulumi/.lock
  ! command -v flock >/dev/null || flock 9
fi
if [ ! -x "$home/bin/pulumi" ]; then
  say "once: building Pulumi $version from Go modules, some minutes"
  # This run's own folder beside the target: what is interrupted is never taken for a build.
  part=$(mktemp -d ".cache/pulumi/$version.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  mkdir "$part/bin"
  flags="-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=$version"
  (cd tools/pulumi_cli && go build -mod=readonly -ldflags "$flags" -o "../../$part/bin/" "$module/cmd/pulumi") ||
    cannot "Pulumi $version could not be built (see above)"
  # What starts a Python program is a script of Pulumi's SDK; the language host itself is not to be had.
  sdk=$(cd tools/pulumi_cli && go list -mod=readonly -m -f '{{.Dir}}' github.com/pulumi/pulumi/sdk/v3)
  install -m 755 "$sdk/python/cmd/pulumi-language-python-exec" "$part/bin/"
  chmod 755 "$part"
  mv "$part" "$home"
  say "built $("$home/bin/pulumi" version)"
fi
echo "$PWD/$home/bin"
