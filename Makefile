# `make` lists the targets. Each one does all set-up it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
INSTALLED := $(VENV)/.installed
PROFILE ?= paper
FIGURES ?=
ALGO ?=
MODEL ?=
ARCHIVE ?= outputs/leaderboard.zip
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install run test pytest test-all lint docs reproduce-figures leaderboard leaderboard-archive benchmark federation-demo clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(CORE): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(INSTALLED): $(CORE)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

install: $(INSTALLED) ## set up .venv with everything for development

run: $(CORE) ## one run: lasso with federated dual averaging
	$(BIN)/fco-run task=lasso algo=feddualavg hparams.client_lr=auto

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: $(INSTALLED) ## lint and the tests of a few minutes, beside each other
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: $(INSTALLED)
	$(PYTEST)

test-all: lint ## lint and all tests, those at the paper's size too
	$(PYTEST) -m 'slow or not slow'

docs: $(INSTALLED) ## build the documentation site, offline, into docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html

reproduce-figures: $(INSTALLED) ## the paper's figures (PROFILE=quick: in minutes; FIGURES="lasso_i nuclear_i": only these)
	$(BIN)/fco-reproduce --profile $(PROFILE) $(FIGURES)

leaderboard: $(INSTALLED) ## every method on every problem (PROFILE=quick: one seed; ALGO=my_method.py: add a method; MODEL=my_net.py: a model)
	$(BIN)/fco-reproduce --profile $(PROFILE) --leaderboard --algo '$(ALGO)' --model '$(MODEL)'

leaderboard-archive: $(INSTALLED) ## the leaderboard's records, tables and data card as outputs/leaderboard.zip
	$(BIN)/fco-report outputs --leaderboard-archive '$(ARCHIVE)'

benchmark: $(INSTALLED) ## measure speed against the plain-NumPy baseline and rewrite benchmarks/README.md
	$(BIN)/python -m benchmarks

federation-demo: $(INSTALLED) ## a coordinator and four hospitals on this machine: a path between them, the simulation's bits
	$(BIN)/python -m fco_cli.commands.federation_demo

clean: ## remove .venv and caches, keep outputs
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
