# The front door. `make train` and `make test` set everything up by themselves.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Pulumi's Azure SDK is 155 MB on disk: training does not wait for it.
INFRA_READY := $(VENV)/.ready-infra
# Playwright, for the tests of the page in Chromium, which are slow.
BROWSER_READY := $(VENV)/.ready-browser
# Real MNIST beside the checkout is used when it is there; otherwise the runner finds the data itself.
DATA ?= $(wildcard ../shared/data/mnist)
ARGS ?=
# Six workers keep two cores busy: tests wait for services and processes. tests/conftest.py orders
# the files. Workers share the bytecode that they write. pytest-xdist never ends where a new worker
# replaces one that died, so the run fails instead.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n 6 --dist loadfile --no-loadscope-reorder \
  --max-worker-restart 0

# Programs that few targets need, each in an environment of its own.
TOOLS := .cache/tools

.PHONY: help setup train test test-all proof lint preview format bench schema recipes docs recording tour dist lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## create .venv with the pinned packages

# An interpreter that was asked for is used, even if .venv was made with another one.
ASKED := $(if $(filter file,$(origin PYTHON)),,asked)
ifneq ($(wildcard $(READY)),)
ifneq ($(shell tools/setup.sh --current "$(PYTHON)" $(VENV) $(ASKED)),yes)
$(READY): renew
endif
endif

.PHONY: renew not-sudo
renew:

# What root leaves in a clone of a user would be in the way later.
not-sudo:
	@if [ "$$(id -u)" = 0 ] && [ -n "$${SUDO_USER:-}" ] && [ "$$(ls -nd . | awk '{print $$3}')" != 0 ]; then \
	  printf 'error[R-SETUP-SUDO]: %s\n  why: %s\n  fix: %s\n' "make was started with sudo" \
	    "it would leave files of root in this folder, which belongs to $$SUDO_USER" \
	    "make $(or $(MAKECMDGOALS),train)" >&2; exit 3; fi

$(READY): requirements/dev.lock pyproject.toml batch_emulator/pyproject.toml tools/setup.sh | not-sudo
	@tools/setup.sh "$(PYTHON)" $(VENV) $(ASKED)

$(INFRA_READY): $(READY) requirements/infra.lock tools/setup_infra.sh
	@tools/setup_infra.sh $(VENV)

$(BROWSER_READY): $(READY) requirements/browser.lock
	@echo "once: Playwright, 45 MB to download" >&2
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/browser.lock
	@touch $@

$(TOOLS)/%/.ready: requirements/%.lock $(READY)
	@echo "once: installing the packages of requirements/$*.lock" >&2
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(TOOLS)/$*
	@$(BIN)/uv pip install --quiet --python $(TOOLS)/$*/bin/python --require-hashes -r requirements/$*.lock
	@touch $@

train: $(READY) ## train MNIST on local services (ARGS="--set subset=8000" for a quick one)
	@$(BIN)/runner train mnist $(if $(DATA),--data $(DATA)) $(ARGS)

test: $(INFRA_READY) ## unit, contract and smoke tests
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(INFRA_READY) $(BROWSER_READY) ## everything, the slow suites too; `tools/framework_envs.sh` adds those of frameworks
	eval "$$(tools/framework_envs.sh --built)"; $(PYTEST) -n 3 $(ARGS)  # they train: a load of 4, not 8

proof: $(INFRA_READY) ## kill -9 and evictions at their full number: about two hours
	PROOF_PARTS=4 PROOF_ROUNDS=43 PROOF_EVICTIONS=50 PROOF_STORAGE_KILLS=100 PROOF_MNIST_KILLS=5 \
	  PROOF_KILLS=100 PROOF_SWEEPS=20 PROOF_EMULATOR_KILLS=200 PROOF_EXAMPLES=2000 PROOF_LINES=4 \
	  PROOF_FUZZ_SHARE=1 PROOF_FUZZ_EXAMPLES=20 PROOF_COST_CASES=100000 PROOF_RACES=1000 PROOF_HEALTHY_RUNS=200 \
	  $(PYTEST) tests/proof tests/e2e/test_resume_proof.py tests/contract/test_kills.py \
	  tests/e2e/test_trouble.py::test_runs_on_a_node_with_connection_resets_are_correct \
	  tests/unit/infra/planning/test_autoscale_properties.py tests/clients/test_fuzz.py \
	  tests/unit/core/pricing/test_cost.py tests/contract/test_why_healthy.py \
	  tests/unit/node/script/test_output_races.py tests/unit/node/agent/test_model_registry_races.py $(ARGS)

lint: $(INFRA_READY) $(BROWSER_READY) ## ruff, pyright strict, import rules, links of the pages, workflows, audits
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m tools.docs_site --check
	@tools/lint_workflows.sh $(TOOLS)/workflows
	@$(MAKE) --no-print-directory $(TOOLS)/audit/.ready || true  # without a network, the audit says so
	@$(BIN)/python -m tools.audit $(TOOLS)/audit

preview: $(INFRA_READY) ## what `runner up` would create in Azure, without Azure
	@$(BIN)/runner preview --offline $(ARGS)

format: $(READY) ## let ruff format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INFRA_READY) ## ratios against peers measured in the same run
	BENCH_MNIST="$${BENCH_MNIST-$(DATA)}" $(BIN)/python -m bench $(ARGS)

schema: $(READY) ## rewrite the generated files (schemas, coverage page, references)
	$(BIN)/python -m tools.recipe_schema
	$(BIN)/python -m tools.cli_reference
	$(BIN)/python -m tools.error_reference
	$(BIN)/python -m tools.emulator_coverage > docs/emulator-coverage.md
	$(BIN)/python -m tools.emulator_coverage badge > docs/emulator-conformance.svg
	$(BIN)/python -m tools.emulator_reference

recipes: $(READY) ## train each built-in recipe on a part of its data, and write docs/recipes.md
	ALL_RECIPES=1 $(BIN)/pytest tests/e2e/test_recipes.py $(ARGS)
	$(BIN)/python -m tools.recipe_table

docs: $(TOOLS)/docs/.ready ## build the documentation as a site, into site/
	@$(BIN)/python -m tools.docs_site --zensical $(TOOLS)/docs/bin/zensical

recording: $(TOOLS)/recording/.ready ## record `make train` as docs/make-train.svg
	@tools/recording.sh $(BIN) $(TOOLS)/recording/bin/termtosvg

tour: $(READY) ## walk through the page in a headless browser, and write the pictures of docs/page/
	$(BIN)/python -m tools.page_tour

dist: $(READY) ## build wheel and source distribution of runner and of the emulator, into dist/
	rm -rf dist
	$(BIN)/python -m tools.page_scripts
	$(BIN)/uv build --quiet --out-dir dist/batch-emulator batch_emulator
	$(BIN)/uv build --quiet --out-dir dist/azure-batch-runner .

# Without the address of a registry; the clone itself is the emulator's distribution.
LOCK := env -u UV_INDEX -u UV_DEFAULT_INDEX -u UV_FIND_LINKS -u PIP_FIND_LINKS \
  $(BIN)/uv --no-config pip compile --upgrade --quiet --universal --python-version 3.11 --generate-hashes \
  --no-header --no-annotate --no-emit-index-url --no-emit-package batch-emulator

lock: $(READY) ## pin the newest allowed versions (rewrites requirements/*.lock)
	$(LOCK) pyproject.toml --extra local --extra ui --extra dev --output-file requirements/dev.lock
	$(LOCK) pyproject.toml --extra local --extra ui --extra dev --extra infra --extra otlp \
	  --constraints requirements/dev.lock --constraints requirements/together.in \
	  --output-file requirements/infra.lock
	$(LOCK) pyproject.toml requirements/extras-tests.in --extra local --extra mlflow --extra tensorboard \
	  --constraints requirements/infra.lock --output-file requirements/extras.lock
	for tool in audit browser docs recording workflows; do \
	  $(LOCK) requirements/$$tool.in --output-file requirements/$$tool.lock || exit; done
	$(LOCK) batch_emulator/pyproject.toml --constraints requirements/dev.lock --output-file batch_emulator/image.lock
	sed 's/ .*//' runner/flows/local/nodejs.lock | grep == | \
	  $(LOCK) --no-deps - --output-file runner/flows/local/nodejs.lock

clean: ## remove what make made in this folder, and stop its services
	@tools/clean.sh $(VENV)
