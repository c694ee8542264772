#!/usr/bin/env bash
# Build Pulumi from Go modules, once per version, and print the folder of what was built:
#   bin/pulumi                    the CLI with its engine
#   host/pulumi-language-python   the language host, with the script beside it that it starts
# Usage: tools/build_pulumi.sh [--check]   exit code 75: it cannot be built here, and why
# Every module is verified against go.sum. With --check nothing is built.
set -euo pipefail
cd "$(dirname "$0")/.."

cli=github.com/pulumi/pulumi/pkg/v3/cmd/pulumi
sdk=github.com/pulumi/pulumi/sdk/v3
host=$sdk/python/cmd/pulumi-language-python
pinned() { awk -v module="$2" '$1 == module || $2 == module { print $NF; exit }' "tools/$1/go.mod"; }
version=$(pinned pulumi_cli github.com/pulumi/pulumi/pkg/v3)
host_version=$(pinned pulumi_host $sdk)
home=.cache/pulumi/$version-host-$host_version
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
  part=$(mktemp -d "$PWD/.cache/pulumi/$version.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  mkdir "$part/bin" "$part/host"
  build() { # FOLDER OF go.mod, PACKAGE, ITS VERSION, WHERE TO
    flags="-s -w -X $sdk/go/common/version.Version=$3"
    (cd "tools/$1" && go build -mod=readonly -ldflags "$flags" -o "$part/$4/" "$2") ||
      cannot "$2 $3 could not be built (see above)"
  }
  build pulumi_cli "$cli" "$version" bin
  build pulumi_host "$host" "$host_version" host
  # The host starts a program by a script; the CLI's own version of it goes with the Python SDK.
  sources=$(cd tools/pulumi_cli && go list -mod=readonly -m -f '{{.Dir}}' "$sdk")
  install -m 755 "$sources/python/cmd/pulumi-language-python-exec" "$part/host/"
  chmod 755 "$part"
  mv "$part" "$home"
  say "built $("$home/bin/pulumi" version), its language host is $host_version"
fi
echo "$PWD/$home"
