# make repro, make test: everything from a plain Python installation to a result. Each target is one or two commands that README.md also gives without make.
PYTHON ?= python3
BIN := .venv/bin
# DVC runs `python` for every stage; it must be this environment's.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# uv's cache is in the project where the home directory is read-only.
ifeq ($(UV_CACHE_DIR)$(shell test -w "$$HOME" && echo writable),)
export UV_CACHE_DIR := $(CURDIR)/.tandem/uv
endif

# As pip, uv trusts the machine's certificates, so that it works behind a proxy that has its own.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt),)
export UV_SYSTEM_CERTS := 1
endif

.DEFAULT_GOAL := help
.PHONY: help setup repro test test-long gpu-test team-test faults lint screenshots show ui doctor gpu audit lock clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(BIN)/.installed  ## create .venv with the locked requirements, and those in requirements.own.txt; TORCH=installed: without torch

# Packages that only the workloads of this project need (docs/extending.md). Complete and pinned: --no-deps.
OWN := $(wildcard requirements.own.txt)

# TORCH=installed: use the torch of $(PYTHON), and install neither the locked one nor its CUDA libraries.
OF_TORCH := /^(torch|triton|cuda-[a-z]+|nvidia-[^m][a-z0-9-]*)==/,/[^\\]$$/d

$(BIN)/.installed: requirements.txt $(OWN) tandem/command.sh
	@command -v $(PYTHON) >/dev/null || { echo 'error: there is no $(PYTHON); run make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"error: Tandem needs Python 3.11 or later, $(PYTHON) is {sys.version.split()[0]}; run make PYTHON=/path/to/python3.11")'
ifdef TORCH
	@$(PYTHON) -c 'import importlib.util, sys; importlib.util.find_spec("torch") or sys.exit("error: $(PYTHON) has no torch; leave out TORCH, or run make TORCH=installed PYTHON=/path/to/python3.11 with one that has it")'
endif
	@$(PYTHON) -m venv $(if $(TORCH),--system-site-packages) .venv
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.txt > .venv/uv.txt
	@$(BIN)/python -m pip install --quiet $(if $(TORCH),--ignore-installed) --disable-pip-version-check --require-hashes -r .venv/uv.txt
	@echo 'installing the locked packages into .venv (half a minute or more$(if $(TORCH),,; 6 GB, because torch contains the CUDA libraries))'
	@sed -E '$(if $(TORCH),$(OF_TORCH))' requirements.txt > .venv/requirements.txt
	@$(BIN)/uv pip sync --quiet --require-hashes --python $(BIN)/python .venv/requirements.txt
ifdef OWN
	@! grep -vE '^[[:space:]]*(#|--hash|$$)|^[^#]*==' $(OWN) || { echo 'error: write NAME==VERSION in each line of $(OWN)' >&2; exit 1; }
	$(BIN)/uv pip install --no-deps --python $(BIN)/python --requirement $(OWN)
	@$(BIN)/uv pip check --quiet --python $(BIN)/python || { echo 'error: add to $(OWN) what its packages need' >&2; exit 1; }
endif
	@$(BIN)/python -m flows.plots_page
	@install -m 755 tandem/command.sh $(BIN)/tandem
	@touch $@

repro: $(BIN)/.installed  ## dvc repro, then a summary of what ran and the results
	@tandem repro

test: lint  ## lint, types, import contracts, and all tests except the long ones
	@python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-long: lint  ## the long tests
	@python -m pytest -m long -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

gpu-test: $(BIN)/.installed  ## the tests that need a GPU, in sequence; ARGS="-m 'gpu and not gpu_time'"
	@python -m pytest -m gpu $(ARGS)

team-test: $(BIN)/.installed  ## run a team's servers and workers on this machine and kill one of them: docs/team.md; ARGS="--without postgresql"
	@python -m tests.team $(ARGS)

faults: $(BIN)/.installed  ## test every fault of docs/reliability.md with real processes, and write its table
	@HYPOTHESIS_EXAMPLES=100 python -m pytest tests -m case --catalogue=docs/reliability.md -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: $(BIN)/.installed  ## ruff, mypy and import-linter
	@ruff check . && mypy && lint-imports --no-cache --no-logo

ui: $(BIN)/.installed  ## run Prefect, MLflow and the deployments on this machine until Ctrl+C
	@tandem ui

doctor:  ## report problems of this machine or environment, and the commands that fix them; ARGS="--json", ARGS="--no-live"
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tandem.cli doctor $(ARGS)

gpu:  ## run the GPU checks and benchmarks, 25 minutes at most, and print the tables; ARGS="--list", ARGS="--minutes 9"
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tandem.cli gpu $(ARGS)

audit: $(BIN)/.installed  ## check the lock for known vulnerabilities (https://osv.dev)
	@uv tool run pip-audit==2.10.1 --requirement requirements.txt --require-hashes --disable-pip --vulnerability-service osv --strict $(ARGS)

lock: $(BIN)/.installed  ## regenerate requirements.txt from pyproject.toml
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --upgrade --no-header --quiet --output-file requirements.txt
	uv pip compile --group team --constraint requirements.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet --output-file flows/team.txt
	uv pip compile --group browser --constraint requirements.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet --output-file tests/browser.txt

screenshots: $(BIN)/.installed  ## walk through all pages in a browser and take the pictures of docs/pages/; needs a running `make ui`, and Chromium
	uv pip install --quiet --require-hashes -r tests/browser.txt
	python -m tests.screenshots

show: $(BIN)/.installed  ## list published results, local results and every experiment; ARGS="sign"
	@tandem show $(ARGS)

# DVC's cache has the only copy of the experiments' results.
CLEAN := data results .tandem .dvc/tmp dvc_plots $(if $(findstring --cache,$(ARGS)),.dvc/cache)
clean:  ## remove generated files, but not files in git, the environment, MLflow's history or DVC's cache; ARGS=--cache: also the cache
	@du -shc $(wildcard $(CLEAN)) | sed 's/^/remove /'
	git clean -fdXq -- $(CLEAN)
	@test ! -d .dvc/cache || echo "kept: .dvc/cache, $$(du -sh .dvc/cache | cut -f1), with the results of all experiments; ARGS=--cache removes it too"
