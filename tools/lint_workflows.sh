#!/usr/bin/env bash
# Check .github/ and the workflow of `runner init --ci github` with actionlint, zizmor and the JSON
# schemas of GitHub's files.
# Usage: tools/lint_workflows.sh FOLDER   (make installs requirements/workflows.lock there)
# Without Go, actionlint is left out, and without a network all that is not installed yet; a line on
# stderr says so.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$1
module=github.com/rhysd/actionlint/cmd/actionlint version=v1.7.7
say() { printf '[workflows] %s\n' "$*" >&2; }

written=$(mktemp -d)
trap 'rm -rf "$written"' EXIT
.venv/bin/python -m tools.written_workflow "$written"
generated=("$written"/*.yml)

if make --no-print-directory "$folder/.ready"; then
  "$folder/bin/zizmor" --offline --no-progress --quiet --pedantic .github "${generated[@]}"
  check() { "$folder/bin/check-jsonschema" --builtin-schema "vendor.$1" "${@:2}" >&2; }
  check github-workflows .github/workflows/*.yml "${generated[@]}"
  check github-actions .github/actions/*/action.yml
  check dependabot .github/dependabot.yml
  check github-issue-config .github/ISSUE_TEMPLATE/config.yml
  check github-issue-forms .github/ISSUE_TEMPLATE/{bug,feature}.yml
else
  say "not checked by zizmor and check-jsonschema: they could not be installed (see above)"
fi

# Beside the environment, which is created anew with every change of its lock.
actionlint=$PWD/${folder%/*}/actionlint-$version/actionlint
if [ ! -x "$actionlint" ] && command -v go >/dev/null; then
  say "once: building actionlint $version"
  GOBIN=${actionlint%/*} go install "$module@$version" || true
fi
if [ -x "$actionlint" ]; then
  export PATH=$PWD/.venv/bin:$PATH # .venv has shellcheck, which it calls
  "$actionlint" # it does not read actions, so their scripts are checked here
  shellcheck .github/actions/*/*.sh
  "$actionlint" "${generated[@]}"
else
  say "not checked by actionlint: it could not be built, or there is no Go to build it"
fi
