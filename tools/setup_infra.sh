#!/usr/bin/env bash
# Add Pulumi and its Azure SDK to the virtual environment. Usage: tools/setup_infra.sh VENV
# The SDK has 7,000 modules and loads few of them: only those are byte-compiled.
set -euo pipefail

venv=$1
started=$SECONDS
say() { printf '[setup %3ss] %s\n' "$((SECONDS - started))" "$*" >&2; }

say "once: Pulumi and its Azure SDK, 50 MB to download"
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --require-hashes -r requirements/infra.lock
sdk=$("$venv/bin/python" -c 'import importlib.util as u; print(u.find_spec("pulumi_azure_native").submodule_search_locations[0])')
used=$(grep -rhoE 'from pulumi_azure_native import [a-z_, ]+' infra | sed 's/.* import //' | tr -d ' ' | tr ',' '\n' | sort -u || true)
for module in $used; do
  [ ! -d "$sdk/$module" ] || "$venv/bin/python" -m compileall -q "$sdk/$module"
done
"$venv/bin/python" -m compileall -q "$(dirname "$sdk")/pulumi" "$(dirname "$sdk")/grpc" infra
say "done; the environment is $(du -sh "$venv" | cut -f1)"
touch "$venv/.ready-infra"
