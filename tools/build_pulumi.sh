#!/usr/bin/env bash
# Build Pulumi from Go modules, once per version, and print the folder of what was built:
#   bin/pulumi                    the CLI with its engine
#   host/pulumi-language-python   the language host, with the script beside it that it starts
# Usage: tools/build_pulumi.sh [--check]
# Exit code 75 means that it cannot be built here; stderr says why. With --check nothing is built.
# Every module is verified against go.sum.
# Packages that no test needs, such as clients of other clouds, take most of the time of building and
# starting the CLI, so tools/pulumi_cli/left_out has stubs for them. The engine is unchanged.
set -euo pipefail
cd "$(dirname "$0")/.."

cli=github.com/pulumi/pulumi/pkg/v3/cmd/pulumi
sdk=github.com/pulumi/pulumi/sdk/v3
host=$sdk/python/cmd/pulumi-language-python
pinned() { awk -v module="$2" '$1 == module || $2 == module { print $NF; exit }' "tools/$1/go.mod"; }
version=$(pinned pulumi_cli github.com/pulumi/pulumi/pkg/v3)
host_version=$(pinned pulumi_host $sdk)
stubs=tools/pulumi_cli/left_out
stubbed=$(find $stubs -name stub.go | LC_ALL=C sort | xargs cat | cksum | cut -d' ' -f1)
home=.cache/pulumi/$version-host-$host_version-stubs-$stubbed
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
  # A temporary folder beside the target, so that an interrupted build is never used.
  part=$(mktemp -d "$PWD/.cache/pulumi/$version.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  mkdir "$part/bin" "$part/host"
  build() { # FOLDER OF go.mod, PACKAGE, ITS VERSION, WHERE TO
    flags="-s -w -X $sdk/go/common/version.Version=$3"
    # No debugging data and less garbage collection in the compiler save 10% of the time.
    options=(-trimpath "-gcflags=all=-dwarf=false" -ldflags "$flags")
    (cd "$1" && GOGC=400 go build "${options[@]}" -o "$part/$4/" "$2") ||
      cannot "$2 $3 could not be built (see above)"
  }
  # A copy of the packages that the CLI imports, in which stubs replace whole packages.
  copy=$part/source
  mkdir "$copy"
  cp tools/pulumi_cli/go.* tools/pulumi_cli/tools.go "$copy"
  if (cd "$copy" && go mod vendor); then
    for stub in $(cd $stubs && find . -name stub.go); do
      rm "$copy/vendor/${stub%/*}"/*.go
      cp "$stubs/$stub" "$copy/vendor/$stub"
    done
  else # `go mod vendor` also needs the modules of other systems
    say "nothing is left out of the CLI, so its build takes twice as long"
    rm -rf "$copy/vendor"
  fi
  build "$copy" "$cli" "$version" bin
  rm -rf "$copy"
  build tools/pulumi_host "$host" "$host_version" host
  # The host starts a program by a script; the CLI's own version of it goes with the Python SDK.
  sources=$(cd tools/pulumi_cli && go list -mod=readonly -m -f '{{.Dir}}' "$sdk")
  install -m 755 "$sources/python/cmd/pulumi-language-python-exec" "$part/host/"
  chmod 755 "$part"
  mv "$part" "$home"
  say "built $("$home/bin/pulumi" version), its language host is $host_version"
fi
echo "$PWD/$home"
