# shellcheck shell=bash
# What every step shares. Sourced, never run.
#
# IMAGE_ROOT is put before every path that is read or written (tests use a throw-away root); it is
# empty on a real machine. Everything else goes through commands found on PATH.

set -Eeuo pipefail
IMAGE_ROOT=${IMAGE_ROOT:-}
IMAGE_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 LC_ALL=C.UTF-8
# shellcheck disable=SC2034 # the steps read it
PREFIX=/opt/runner

# shellcheck source=versions.env
source "$IMAGE_DIR/versions.env"

say() { printf '%s\n' "$*"; }

# refuse WHY: end the step with its name. Its fix is what `begin` was given.
refuse() {
  trap - ERR EXIT
  # The step's own shell says it once, when this one has ended.
  ((BASH_SUBSHELL == 0)) || exit 1
  {
    say "error[R-IMAGE-STEP]: step $STEP failed"
    say "  why: $1"
    say "  fix: $FIX"
  } >&2
  exit 1
}

# begin NAME FIX: from here on, whatever fails ends the step with its name.
begin() {
  STEP=$1 FIX=$2
  trap 'refuse "\`${BASH_COMMAND%%$LINE_END*}\` exited $?, line $LINENO of ${BASH_SOURCE[0]##*/}"' ERR
  # What is no command's exit, such as an unset variable, ends a script without ERR.
  trap ended EXIT
  say "== $STEP"
}
LINE_END=$'\n'
ended() {
  local code=$?
  ((code == 0)) || refuse "it ended with exit code $code, see above"
}

# put FILE [MODE]: write stdin there unless that is what it holds.
put() {
  local path=$IMAGE_ROOT$1 new
  new=$(cat && printf x)
  if [[ -f $path ]] && [[ $(cat "$path" && printf x) == "$new" ]]; then
    return 0
  fi
  mkdir -p "$(dirname "$path")"
  printf '%s' "${new%x}" >"$path.new"
  chmod "${2:-0644}" "$path.new"
  mv "$path.new" "$path"
  say "   wrote $1"
}

# installed PACKAGE: its version, empty where it is not installed.
installed() {
  dpkg-query -W -f '${db:Status-Status} ${Version}' "$1" 2>/dev/null | sed -n 's/^installed //p' || true
}

# is_met PACKAGE[=VERSION]
is_met() {
  local have
  have=$(installed "${1%%=*}")
  [[ -n $have ]] && [[ $1 != *=* || $have == "${1#*=}" ]]
}

# want PACKAGE[=VERSION] ...: install what is missing or of another version.
want() {
  local package missing=()
  for package in "$@"; do
    is_met "$package" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  say "   installing ${missing[*]}"
  apt-get install -y --no-install-recommends --allow-downgrades "${missing[@]}"
  for package in "${missing[@]}"; do
    is_met "$package" || refuse "apt-get installed $package, and yet it is not there"
  done
}

# hold PACKAGE ...: no upgrade may move them. What is held stays so.
hold() {
  local held package loose=()
  held=$(apt-mark showhold)
  for package in "$@"; do
    grep -qxF "$package" <<<"$held" || loose+=("$package")
  done
  ((${#loose[@]})) || return 0
  apt-mark hold "${loose[@]}" >/dev/null
  say "   held ${loose[*]}"
}

# fetch URL FILE: https only, to a file, never into a shell.
fetch() {
  curl --fail --silent --show-error --location --proto =https --proto-redir =https --tlsv1.2 \
    --retry 5 --retry-connrefused --output "$2" "$1"
}

# key NAME URL FINGERPRINT: the repository's key, in /usr/share/keyrings/NAME.gpg. It must be that
# one key and no other: a second key in the file would be trusted as well.
key() {
  local name=$1 url=$2 fingerprint=$3 target=$IMAGE_ROOT/usr/share/keyrings/$1.gpg scratch found
  [[ -s $target ]] && [[ $(fingerprints "$target") == "$fingerprint" ]] && return 0
  scratch=$(mktemp -d)
  fetch "$url" "$scratch/key"
  found=$(fingerprints "$scratch/key")
  if [[ $found != "$fingerprint" ]]; then
    rm -rf "$scratch"
    refuse "the key of $name is ${found:-unreadable}, not $fingerprint"
  fi
  gpg --batch --yes --dearmor --output "$scratch/ring" "$scratch/key"
  mkdir -p "$(dirname "$target")"
  chmod 0644 "$scratch/ring"
  mv "$scratch/ring" "$target"
  rm -rf "$scratch"
  say "   key $name is $fingerprint"
}

# fingerprints FILE: of the primary keys in it, one a line.
fingerprints() {
  gpg --batch --show-keys --with-colons "$1" 2>/dev/null |
    awk -F: '$1 == "pub" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }' || true
}

# once NAME TEXT COMMAND...: run it, unless it went well before for the same TEXT. What failed, or
# was killed half way, is run again.
once() {
  local stamp=$IMAGE_ROOT/var/lib/runner-image/$1 text=$2
  shift 2
  [[ ! -f $stamp || $(<"$stamp") != "$text" ]] || return 0
  rm -f "$stamp"
  "$@"
  mkdir -p "$(dirname "$stamp")"
  printf '%s' "$text" >"$stamp"
}

# repository NAME SOURCE PREFERENCES: a source, what may come from it, and its index.
repository() {
  put "/etc/apt/sources.list.d/$1.list" <<<"$2"
  put "/etc/apt/preferences.d/$1" <<<"$3"
  once "$1.read" "$2$3" apt-get update
}

# only ORIGIN PACKAGES: preferences that let nothing but PACKAGES come from a repository. Without
# it NVIDIA's driver packages (same names, higher versions) would replace Ubuntu's signed ones.
only() {
  printf 'Package: *\nPin: origin %s\nPin-Priority: -1\n\nPackage: %s\nPin: origin %s\nPin-Priority: 600\n' \
    "$1" "$2" "$1"
}
