#!/usr/bin/env bash
# The step of action.yml: install the emulator of this checkout, start it, wait until it is ready, and
# pass on how clients reach it. GitHub ends the process with the job.
# shellcheck disable=SC2153 # action.yml sets ACCOUNT, OPTIONS and PYTHON
set -euo pipefail
package=$(cd "$(dirname "$0")/../../../batch_emulator" && pwd)
folder=$(mktemp -d "$RUNNER_TEMP/batch-emulator.XXXXXX") # a job may start several
log=$folder/log.txt

fail() {
  if [ -s "$log" ]; then printf '::group::log of the emulator\n%s\n::endgroup::\n' "$(cat "$log")"; fi
  printf '::error title=Azure Batch emulator::%s\n' "$1"
  exit 1
}

[[ $ACCOUNT =~ ^[a-z0-9]{3,24}$ ]] || fail "invalid account '$ACCOUNT': use 3 to 24 lower-case letters and digits"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$PYTHON is not Python 3.11 or newer: run actions/setup-python before this action"
"$PYTHON" -m venv "$folder/venv"
python=$folder/venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1
install() { "$python" -m pip install --quiet "$@" >>"$log" 2>&1 || fail "pip cannot install the emulator"; }
install --require-hashes --requirement "$package/image.lock"
install --no-deps "$package"

key=$("$python" -c 'import base64, secrets; print(base64.b64encode(secrets.token_bytes(64)).decode())')
printf '::add-mask::%s\n' "$key"
read -ra options <<<"$OPTIONS"
BATCH_EMULATOR_KEY=$key nohup "$python" -m batch_emulator --account "$ACCOUNT" \
  --data-dir "$folder/state" ${options[@]+"${options[@]}"} >"$folder/says.txt" 2>>"$log" </dev/null &
pid=$!

ready='import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=5)
connection.request("GET", "/_emulator/health")
sys.exit(connection.getresponse().status != 200)'
endpoint=""
for _ in $(seq 300); do
  kill -0 "$pid" 2>/dev/null || fail "the emulator ended before it was ready"
  endpoint=$(sed -n 's/^listening on \([^ ]*\) .*/\1/p' "$folder/says.txt")
  if [ -n "$endpoint" ] && "$python" -c "$ready" "${endpoint#http://}" 2>/dev/null; then break; fi
  endpoint=""
  sleep 0.2
done
if [ -z "$endpoint" ]; then
  kill "$pid" 2>/dev/null || true
  fail "the emulator was not ready within 60 s"
fi

printf '%s\n' "AZURE_BATCH_ENDPOINT=$endpoint" "AZURE_BATCH_ACCOUNT=$ACCOUNT" \
  "AZURE_BATCH_ACCESS_KEY=$key" "BATCH_EMULATOR_LOG=$log" >>"$GITHUB_ENV"
printf '%s\n' "endpoint=$endpoint" "account=$ACCOUNT" "key=$key" "log=$log" "pid=$pid" \
  >>"$GITHUB_OUTPUT"
echo "Azure Batch emulator: $endpoint, account $ACCOUNT"
