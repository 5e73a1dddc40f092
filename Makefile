# Everything a user or CI does starts here; `make help` lists it.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
STUDY ?= .
BIN := .venv/bin

# The environment is current when this file exists; its name changes with what it was built from.
INSTALLED := .venv/installed-$(shell cat requirements.lock pyproject.toml | cksum | cut -d' ' -f1)

# Tests run one process per core with one thread each: tiny models gain nothing from more threads.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(CORES) --dist loadfile

.PHONY: demo test test-slow lint up down bench gpu-check lock clean help

demo: $(INSTALLED)  ## Run the default study on real data, print the table, register the best student
	$(BIN)/python -m flows.distill --study $(STUDY)

test: $(INSTALLED)  ## Run the fast tests (under 10 minutes on two cores)
	$(PYTEST)

test-slow: $(INSTALLED)  ## Run the slow tests: real services, real encoders, kills (about 15 minutes)
	$(PYTEST) -m "slow and not gpu"

lint: $(INSTALLED)  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

up: $(INSTALLED)  ## Start Prefect, a worker and MLflow in the background on 127.0.0.1
	$(BIN)/python -m tasks.services up

down: $(INSTALLED)  ## Stop what `make up` started, and nothing else
	$(BIN)/python -m tasks.services down

bench: $(INSTALLED)  ## Measure what methods and rows cost into results/bench.json (a quarter of an hour, quiet machine)
	$(BIN)/python -m kdcore.bench --output results/bench.json

gpu-check:  ## Run the gpu tests and the bench on CUDA (under 6 minutes, no network)
	scripts/gpu_check.sh

lock:  ## Pin what requirements.in resolves to today into requirements.lock
	rm -rf .kdflow/lock
	$(PYTHON) -m venv .kdflow/lock
	.kdflow/lock/bin/python -m pip install --quiet --requirement requirements.in
	.kdflow/lock/bin/python -m pip freeze --exclude-editable > .kdflow/lock/frozen
	@# No build suffix (+cpu, +cu130) and no CUDA libraries: torch itself pins those that its build needs.
	sed -E 's/\+(cpu|cu[0-9]+|rocm[0-9.]+)$$//; /^(nvidia-|cuda-|triton==)/d' .kdflow/lock/frozen > requirements.lock
	rm -rf .kdflow/lock

clean:  ## Delete caches and unfinished work; keeps .venv, results and the DVC cache
	rm -rf .pytest_cache .mypy_cache .ruff_cache .kdflow/scratch .kdflow/kept .kdflow/logs studies/*/.kdflow
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kdflow needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 2; }
	@echo "Setting up .venv from requirements.lock (a few minutes the first time) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --editable .
	rm -f .venv/installed-*
	touch $@
