# Two commands on a fresh machine: `make demo` and `make test`. Needs Python >= 3.11 with venv, make, a package index.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed

.PHONY: help
help: ## What can be made here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup
setup: $(READY) ## Make .venv from the hashed lock file

.PHONY: demo
demo: $(READY) ## Start everything, send 500 documents, print who finished when
	$(BIN)/workbot demo

.PHONY: test
test: $(READY) ## All tests, a process and a real Kafka, Postgres and registry for each core, up to four
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: test-long
test-long: $(READY) ## The tests that take minutes: servers away while work comes in
	$(BIN)/python -m pytest -m long

.PHONY: lint
lint: $(READY) ## Style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: up
up: $(READY) ## Start the embedded stack in the background
	@if $(BIN)/workbot status >/dev/null 2>&1; then $(BIN)/workbot status; else $(BIN)/workbot up --detach; fi

.PHONY: down
down: $(READY) ## Stop it; its data stays under .workbot/
	$(BIN)/workbot down

.PHONY: load
load: $(READY) ## The 500-job load test against the running stack
	$(BIN)/workbot load

.PHONY: bench
bench: $(READY) ## Speed of the parts, each beside a bare loop of the same client
	$(BIN)/python -m loadtest.bench

.PHONY: chaos
chaos: $(READY) ## Kill and freeze processes under load, for 25 minutes, and audit what became of the work
	$(BIN)/python -m tests.chaos $(CHAOS)

.PHONY: lock
lock: $(READY) ## Resolve the dependencies anew into requirements.lock
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --upgrade --quiet --output-file requirements.lock
