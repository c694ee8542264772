# shellcheck shell=bash
# Functions for the steps, which source this file.
#
# IMAGE_ROOT is the prefix of every path that is read or written. It is empty on a real machine;
# tests set it to a temporary folder. All other changes are made by commands found on PATH.

set -Eeuo pipefail
IMAGE_ROOT=${IMAGE_ROOT:-}
IMAGE_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 LC_ALL=C.UTF-8
# shellcheck disable=SC2034 # the steps read it
PREFIX=/opt/runner

# shellcheck source=versions.env
source "$IMAGE_DIR/versions.env"

say() { printf '%s\n' "$*"; }

# refuse WHY: exit with an error that names the step, the cause, and the fix given to `begin`.
refuse() {
  trap - ERR EXIT
  # In a subshell, print nothing: the step's own shell reports the failure.
  ((BASH_SUBSHELL == 0)) || exit 1
  {
    say "error[R-IMAGE-STEP]: step $STEP failed"
    say "  why: $1"
    say "  fix: $FIX"
  } >&2
  exit 1
}

# begin NAME FIX: start a step. From here on, any failing command ends it with `refuse`.
begin() {
  STEP=$1 FIX=$2
  trap 'refuse "\`${BASH_COMMAND%%$LINE_END*}\` exited $?, line $LINENO of ${BASH_SOURCE[0]##*/}"' ERR
  # Some errors, such as an unset variable, end a script without ERR.
  trap ended EXIT
  say "== $STEP"
}
LINE_END=$'\n'
ended() {
  local code=$?
  ((code == 0)) || refuse "the script exited with code $code; see the output above"
}

# put FILE [MODE]: write stdin to the file, unless the content is the same.
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

# installed PACKAGE: print the installed version, or nothing.
installed() {
  dpkg-query -W -f '${db:Status-Status} ${Version}' "$1" 2>/dev/null | sed -n 's/^installed //p' || true
}

# is_met PACKAGE[=VERSION]: succeed if the package is installed, in this version if one is given.
is_met() {
  local have
  have=$(installed "${1%%=*}")
  [[ -n $have ]] && [[ $1 != *=* || $have == "${1#*=}" ]]
}

# want PACKAGE[=VERSION] ...: install the packages that are missing or have another version.
want() {
  local package missing=()
  for package in "$@"; do
    is_met "$package" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  say "   installing ${missing[*]}"
  apt-get install -y --no-install-recommends --allow-downgrades "${missing[@]}"
  for package in "${missing[@]}"; do
    is_met "$package" || refuse "apt-get succeeded, but $package is not installed"
  done
}

# hold PACKAGE ...: exclude the packages from upgrades.
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

# fetch URL FILE: download a file over HTTPS.
fetch() {
  curl --fail --silent --show-error --location --proto =https --proto-redir =https --tlsv1.2 \
    --retry 5 --retry-connrefused --output "$2" "$1"
}

# key NAME URL FINGERPRINT: install a repository's key as /usr/share/keyrings/NAME.gpg. The file must
# contain this key only, because apt would trust any other key in it too.
key() {
  local name=$1 url=$2 fingerprint=$3 target=$IMAGE_ROOT/usr/share/keyrings/$1.gpg scratch found
  [[ -s $target ]] && [[ $(fingerprints "$target") == "$fingerprint" ]] && return 0
  scratch=$(mktemp -d)
  fetch "$url" "$scratch/key"
  found=$(fingerprints "$scratch/key")
  if [[ $found != "$fingerprint" ]]; then
    rm -rf "$scratch"
    refuse "the key of $name has the fingerprint ${found:-(unreadable)}, expected $fingerprint"
  fi
  gpg --batch --yes --dearmor --output "$scratch/ring" "$scratch/key"
  mkdir -p "$(dirname "$target")"
  chmod 0644 "$scratch/ring"
  mv "$scratch/ring" "$target"
  rm -rf "$scratch"
  say "   key $name is $fingerprint"
}

# fingerprints FILE: print the fingerprints of the primary keys in the file, one per line.
fingerprints() {
  gpg --batch --show-keys --with-colons "$1" 2>/dev/null |
    awk -F: '$1 == "pub" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }' || true
}

# once NAME TEXT COMMAND...: run the command, unless it has succeeded before with the same TEXT.
once() {
  local stamp=$IMAGE_ROOT/var/lib/runner-image/$1 text=$2
  shift 2
  [[ ! -f $stamp || $(<"$stamp") != "$text" ]] || return 0
  rm -f "$stamp"
  "$@"
  mkdir -p "$(dirname "$stamp")"
  printf '%s' "$text" >"$stamp"
}

# repository NAME SOURCE PREFERENCES: add an apt source with its preferences, and read its index.
repository() {
  put "/etc/apt/sources.list.d/$1.list" <<<"$2"
  put "/etc/apt/preferences.d/$1" <<<"$3"
  once "$1.read" "$2$3" apt-get update
}

# only ORIGIN PACKAGES: print apt preferences that allow only PACKAGES from a repository. Otherwise
# NVIDIA's driver packages (same names, higher versions) would replace Ubuntu's signed ones.
only() {
  printf 'Package: *\nPin: origin %s\nPin-Priority: -1\n\nPackage: %s\nPin: origin %s\nPin-Priority: 600\n' \
    "$1" "$2" "$1"
}
