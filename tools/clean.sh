#!/usr/bin/env bash
# Remove what make made in this folder, and say what it keeps elsewhere. Usage: tools/clean.sh VENV
set -euo pipefail

venv=$1 me=$(id -un)
# Without the environment, nothing could stop the services that run in it.
homes='
import psutil
from runner.flows.child_python import command_of
command = command_of("batch_emulator")
for process in psutil.process_iter(["cmdline"]):
    words = process.info["cmdline"] or []
    if words[: len(command)] == command and "--data-dir" in words:
        print(words[words.index("--data-dir") + 1].removesuffix("/local/batch"))'
while IFS= read -r running; do
  RUNNER_HOME=$running "$venv/bin/runner" local down || echo "the local services of $running still run" >&2
done < <("$venv/bin/python" -c "$homes" 2>/dev/null)
default='import os; from runner.core.home import runner_home; print(runner_home(os.environ))'
home=$("$venv/bin/python" -c "$default" 2>/dev/null) || home=${RUNNER_HOME:-}

made=("$venv" .cache outputs dist build site .hypothesis .pytest_cache .ruff_cache .import_linter_cache)
while IFS= read -r -d '' folder; do made+=("$folder"); done < <(
  find . \( -path "./$venv" -o -path ./.git \) -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -print0
)
if ! rm -rf "${made[@]}"; then
  printf 'error[R-CLEAN]: cannot remove everything that make made in %s\n  why: %s\n  fix: %s\n' "$PWD" \
    "these files belong to somebody else than $me, for example because of \`sudo make\`" \
    "sudo chown -R $me '$PWD', then run make clean again" >&2
  exit 3
fi
[ ! -d "$home" ] || printf 'kept %s (%s): runs and models on local services, Azurite, packages, data sets\n' \
  "$home" "$(du -sh "$home" 2>/dev/null | cut -f1)"
