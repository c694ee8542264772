#!/usr/bin/env bash
# Remove what make made in this folder, and say what it keeps elsewhere. Usage: tools/clean.sh VENV
set -euo pipefail

venv=$1 me=$(id -un)
# Without the environment, nothing could stop the services that run in it.
runs='
import sys, psutil
command = [sys.executable, "-m", "batch_emulator"]
sys.exit(not any((p.info["cmdline"] or [])[:3] == command for p in psutil.process_iter(["cmdline"])))'
if "$venv/bin/python" -c "$runs" 2>/dev/null; then
  "$venv/bin/runner" local down || echo "the local services of $PWD still run" >&2
fi
home=${RUNNER_HOME:-}
[ -n "$home" ] || home=$("$venv/bin/python" -c 'import os; from runner.core.home import runner_home; print(runner_home(os.environ))' 2>/dev/null) || true

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
