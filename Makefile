# The front door. `make train` and `make test` set everything up by themselves.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DATA ?= $(wildcard ../shared/data/mnist)

.PHONY: help setup train test test-all lint format bench schema lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY) ## create .venv with pinned packages

$(READY): requirements/dev.lock pyproject.toml
	@bash tools/setup.sh $(PYTHON) $(VENV)

lock: ## pin the newest allowed versions (rewrites requirements/dev.lock)
	env -u UV_INDEX -u UV_DEFAULT_INDEX -u UV_FIND_LINKS -u PIP_FIND_LINKS $(BIN)/uv --no-config pip compile pyproject.toml --extra local --extra dev \
	  --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links -q -o requirements/dev.lock
