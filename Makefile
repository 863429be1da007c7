# make repro, make test: everything from a bare Python to a result. Each target is one or two commands that README.md also gives without make.
PYTHON ?= python3
BIN := .venv/bin
# DVC runs `python` for every stage: it must be this environment's.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup repro test test-long gpu-test team-test faults lint screenshots show ui doctor gpu audit lock clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(BIN)/.installed  ## make .venv with the locked requirements

$(BIN)/.installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"error: Tandem needs Python 3.11 or later, $(PYTHON) is {sys.version.split()[0]}; run make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements.txt > .venv/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	$(BIN)/uv pip sync --require-hashes --compile-bytecode --python $(BIN)/python requirements.txt
	@touch $@

repro: $(BIN)/.installed  ## dvc repro, then a summary of what ran and what came out
	@python -m flows.repro

test: lint  ## lint, types, arrows, and the tests but for the long ones
	@python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-long: lint  ## the tests that are too long for make test
	@python -m pytest -m long -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

gpu-test: $(BIN)/.installed  ## the tests that need a GPU, one after the other; ARGS="-m 'gpu and not gpu_time'"
	@python -m pytest -m gpu $(ARGS)

team-test: $(BIN)/.installed  ## a team's servers and workers on this machine, one of them killed: docs/team.md; ARGS="--without postgresql"
	@python -m tests.team $(ARGS)

faults: $(BIN)/.installed  ## every fault of docs/reliability.md on the real thing, and its table
	@HYPOTHESIS_EXAMPLES=100 python -m pytest tests -m case --catalogue=docs/reliability.md -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: $(BIN)/.installed  ## ruff, mypy and import-linter
	@ruff check . && mypy && lint-imports --no-cache --no-logo

ui: $(BIN)/.installed  ## Prefect, MLflow and the deployments on this machine, until Ctrl+C
	@python -m flows.ui

doctor:  ## what is wrong with this machine or environment, and the exact fix; ARGS="--json", ARGS="--no-live"
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m flows.doctor $(ARGS)

gpu:  ## every check and benchmark for a GPU, 25 minutes at most, and their tables; ARGS="--list", ARGS="--minutes 9"
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu $(ARGS)

audit: $(BIN)/.installed  ## the lock against known vulnerabilities, where a database is reachable
	@python -m flows.audit

lock: $(BIN)/.installed  ## write requirements.txt anew from pyproject.toml
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --upgrade --no-header --quiet --output-file requirements.txt
	uv pip compile --group team --constraint requirements.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet --output-file flows/team.txt
	uv pip compile --group browser --constraint requirements.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet --output-file tests/browser.txt

screenshots: $(BIN)/.installed  ## pictures of every page into docs/pages/, taken by clicking; `make ui` must run, and Chromium be installed
	uv pip install --quiet --require-hashes -r tests/browser.txt
	python -m tests.screenshots

show: $(BIN)/.installed  ## what is published, what is here, every experiment; ARGS="sign"
	@python -m flows.show $(ARGS)

clean:  ## remove what was made here (data, results, caches, state); not what git keeps, the environment, MLflow's history
	git clean -fdXq -- data results .tandem .dvc/cache .dvc/tmp
