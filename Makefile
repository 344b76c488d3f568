# make demo            install what the demo needs, then run the whole path once and re-check its result
# make demo TASK=f.py  the same with your own module
# make serve           API, dashboard and worker on one port (HOST=, PORT=, SERVE_ARGS=)
# make test            what CI tests (PYTEST_ARGS="-k name -x" for a part of it)
# make test-all        that, and what takes long: slow, and only meaningful on a quiet machine
# make lint            formatter, linter, types, import contract
# make install         the environment of `make demo` alone; make lock: resolve constraints.txt anew
# make catalogue       write docs/catalogue.md from the task files (not committed)
#
# Everything is installed into .venv. A stamp per set of extras says what it holds, so nothing is installed or
# downloaded twice; a change of pyproject.toml or constraints.txt makes the stamps stale. How torch is chosen (the
# CPU build where there is no GPU) is written at the top of scripts/install.py.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
TASK ?=
HOST ?= 127.0.0.1
PORT ?= 8000
SERVE_ARGS ?=
PYTEST_ARGS ?=
CHECKED := agent evaluator kernelbench_tasks kernelwright rl services tests scripts $(wildcard benchmarks)

# The Python that makes .venv: yours if you name one (make PYTHON=python3.12), else the first that is new enough and
# has the modules that a virtual environment needs.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11 python; do \
	$$name -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$name; exit; }; done)
endif

.PHONY: help
help: ## this text
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

.PHONY: install
install: $(STAMPS)/run ## the environment that the demo and the service need

.PHONY: demo
demo: $(STAMPS)/run
	@$(BIN)/python -m services.demo $(if $(TASK),--task "$(TASK)")

.PHONY: serve
serve: $(STAMPS)/run
	@$(BIN)/kernelwright serve --host "$(HOST)" --port "$(PORT)" $(SERVE_ARGS)

.PHONY: test
test: $(STAMPS)/dev
	$(BIN)/python -m scripts.run_tests $(PYTEST_ARGS)

.PHONY: test-all
test-all: $(STAMPS)/dev
	$(BIN)/python -m scripts.run_tests -m "" $(PYTEST_ARGS)

.PHONY: lint
lint: $(STAMPS)/dev
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMPS)/dev
	$(BIN)/ruff format $(CHECKED)
	$(BIN)/ruff check --fix $(CHECKED)

.PHONY: lock
lock: $(STAMPS)/dev
	$(BIN)/python scripts/lock.py

.PHONY: catalogue
catalogue: $(STAMPS)/dev
	$(BIN)/python -m scripts.catalogue

.PHONY: clean
clean: ## remove the environment and what tools left behind
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .schemathesis

.PHONY: python-found
python-found:
	@test -n "$(PYTHON)" || { \
	echo "No Python 3.11 or newer with the modules venv and ensurepip was found." >&2; \
	echo "On Debian and Ubuntu: apt-get install python3 python3-venv. Or name one: make PYTHON=/path/to/python3" >&2; \
	exit 1; }

INSTALL_INPUTS := pyproject.toml constraints.txt scripts/install.py

# `dev` holds all that `run` holds, so whoever has it needs no second installation.
$(STAMPS)/run: $(INSTALL_INPUTS) | python-found
	@$(PYTHON) scripts/install.py --venv $(VENV) --extras service,agent
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: $(INSTALL_INPUTS) | python-found
	@$(PYTHON) scripts/install.py --venv $(VENV) --extras service,agent,mcp,rl,dev
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/run
