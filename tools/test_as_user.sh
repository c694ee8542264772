#!/usr/bin/env bash
# Run `make test` as most people do: as an ordinary user, and on a machine that has just started. Where the newest
# supported Python is installed, it is used, so that one more run covers all three.
# Usage: tools/test_as_user.sh [ARGS=...]. Exit code 75 means that it was skipped; stderr says why.
#
# Run by root, the tests use a clone of the last commit that belongs to a user with a home folder. The account
# and an empty /tmp exist in a mount namespace only: nothing of the system changes. Run by anybody else, they
# use this checkout. In both cases the monotonic clock, the boot clock and /proc/uptime begin at 0 when the
# tests do, in a time namespace (Linux 5.6) that the processes of tests inherit. Tests of root alone are
# skipped here, and tests of ordinary users in a run as root: each needs both runs.
set -euo pipefail
cd "$(dirname "$0")/.."
newest=3.14

say() { printf '[as a user] %s\n' "$*" >&2; }
skip() { say "skipped: $*"; exit 75; }

for program in unshare setpriv python3; do
  command -v "$program" >/dev/null || skip "there is no $program, which is part of Linux distributions"
done
# Runs its arguments with clocks that begin now; options of unshare come first.
with_new_clocks() {
  unshare --time --monotonic="-$(python3 -c 'import time; print(int(time.monotonic()))')" \
    --boottime="-$(cut -d. -f1 /proc/uptime)" --fork "$@"
}

if [ "$(id -u)" != 0 ]; then
  with_new_clocks --user --map-current-user true 2>/dev/null || skip "users may create no time namespace here"
  with_new_clocks --user --map-current-user make test "$@"
  exit
fi

if [ -z "${HAS_OWN_MOUNTS:-}" ]; then
  unshare --mount true 2>/dev/null || skip "root may not create a mount namespace here, as in most containers"
  HAS_OWN_MOUNTS=1 exec unshare --mount tools/test_as_user.sh "$@"
fi
unset HAS_OWN_MOUNTS
if ! with_new_clocks true 2>/dev/null; then
  say "this system has no time namespaces: the clocks of the tests are those of the machine"
  with_new_clocks() { "$@"; }
fi
[ -z "$(git status --porcelain)" ] || say "the clone lacks what is not committed"

folder=$(mktemp -d -p /var/tmp)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
id=20000
while getent passwd "$id" || getent group "$id"; do id=$((id + 1)); done >/dev/null
echo "ordinary:x:$id:$id::$folder/home:/bin/bash" | cat /etc/passwd - >"$folder/passwd"
echo "ordinary:x:$id:" | cat /etc/group - >"$folder/group"
# Hard links would give the objects of this repository to the user.
git clone --quiet --no-hardlinks . "$folder/clone"
mkdir "$folder/home" "$folder/tmp"
chown -R "$id:$id" "$folder/clone" "$folder/home"
chmod 1777 "$folder/tmp"
mount --bind "$folder/passwd" /etc/passwd
mount --bind "$folder/group" /etc/group
mount --bind "$folder/tmp" /tmp
[ ! -d ../shared ] || ln -s "$(realpath ../shared)" "$folder/shared" # data that some tests read
cd "$folder/clone"                                                   # the checkout may be in /tmp

# The environment without the folders of root, which the user may not enter.
user=(setpriv "--reuid=$id" "--regid=$id" --clear-groups)
path=$(tr : '\n' <<<"$PATH" | while read -r each; do
  ! "${user[@]}" test -x "$each" || printf '%s:' "$each"
done)
user+=(env "PATH=${path%:}" "HOME=$folder/home" USER=ordinary LOGNAME=ordinary)
for name in $(compgen -e); do
  case "$name=${!name}" in
    PATH=* | HOME=*) ;;
    XDG_* | RUNNER_* | TMPDIR=* | *"=$HOME"* | *":$HOME"*) unset "$name" ;;
  esac
done
python=python$newest
if ! "${user[@]}" "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  say "Python $newest: not tried, because the user has none"
  python=python3
fi
"${user[@]}" "$python" -c pass || skip "the user has no python3: it is in a folder of root"

say "setting up a clone for $("${user[@]}" id), with $("${user[@]}" "$python" --version)"
"${user[@]}" make .venv/.ready-infra PYTHON="$python"
say "testing, $(with_new_clocks cut -d' ' -f1 /proc/uptime) s after the start of the machine"
with_new_clocks "${user[@]}" make test PYTHON="$python" "$@"
