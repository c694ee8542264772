#!/bin/sh
# Move the runs that are due, with the code of an archive in the working directory of a task.
# runner/flows/runs/moving/mover.py sets these variables, or those of one of the two places:
#   MOVER_SHA256           hash of the archive
#   MOVER_PYTHON           on this machine: the Python that has the packages, beside RUNNER_HOME
#   RUNNER_MOVER_OUTPUTS   on Azure: the outputs of the stack RUNNER_STACK
set -e
python3 -c 'import hashlib, sys
sys.exit(hashlib.sha256(open("mover.zip", "rb").read()).hexdigest() != sys.argv[1])' "$MOVER_SHA256" || {
  echo "mover.zip was changed" >&2
  exit 1
}
rm -rf mover
python3 -m zipfile -e mover.zip mover
cd mover
export PYTHONPATH="$PWD/code"
if [ -n "${MOVER_PYTHON:-}" ]; then
  exec "$MOVER_PYTHON" -m runner pool fallback --target local
fi
mkdir -p home/stacks
printf '%s' "$RUNNER_MOVER_OUTPUTS" > "home/stacks/$RUNNER_STACK.json"
# The start task of the pool has put uv into the shared folder.
shared=$AZ_BATCH_NODE_SHARED_DIR/runner
export RUNNER_HOME="$PWD/home" UV_NO_PROGRESS=1 PATH="$shared/bin:$PATH"
export UV_CACHE_DIR="$shared/cache/uv" UV_PYTHON_INSTALL_DIR="$shared/cache/python"
exec uv run --no-project --no-config --python '>=3.11' --with-requirements requirements.txt -- \
  python -m runner pool fallback --target azure
