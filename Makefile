# Everything here works on a fresh clone with Python 3.11 or newer, make and gcc: the first target that needs it sets up .venv.
.DEFAULT_GOAL := help
.PHONY: help up test coverage check format bench crash machine soak fires lock clean openapi cli

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ARGS   ?=
# One test process more than cores, as many tests wait for a process or for time to pass; four at most, as some measure.
TESTERS := $(shell $(PYTHON) -c 'import os; print(min(4, (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 1))')

help:           ## Show this help.
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sort | sed 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-8s %s\n", $$1, $$2}'

up: $(READY)    ## Start everything: a private PostgreSQL, the API, a worker. ARGS="--port 9000 --home DIR".
	@exec $(BIN)/duly up $(ARGS)

test: $(READY)  ## Run all tests. ARGS="-k name" for some.
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal $(ARGS)

coverage: $(READY) ## Run all tests under coverage; the engine's packages must be covered wholly, branches too.
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -n $(TESTERS) --dist worksteal --timeout 300 $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

machine: $(READY) ## Drive the engine through random orders of everything, 10 minutes long (DULY_MACHINE_MINUTES).
	DULY_MACHINE=long $(BIN)/python -m pytest -s tests/machine $(ARGS)

check: $(READY) ## Lint, format check, types, import contracts, changelog fragments.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/towncrier build --draft --version next > /dev/null

format: $(READY) ## Format the code and mend what the linter can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Run the benchmarks: a table, and JSON in bench/results. ARGS="drain --quick" for one.
	$(BIN)/python -m bench $(ARGS)

crash: $(READY) ## Run the crash matrix and write docs/reference/crash-matrix.md. ARGS="settle claim-after" for some, no page.
	@PYTHONPATH=tests exec $(BIN)/python -m matrix $(ARGS)

soak: $(READY)  ## Half an hour of kills, stops, crashes and wrong clocks, then an audit. ARGS="--minutes 2".
	$(BIN)/python -m bench.soak $(ARGS)

openapi: $(READY) ## Write docs/reference/openapi.json from the routes; a test fails while the two differ.
	$(BIN)/python -m duly.api.openapi docs/reference/openapi.json

cli: $(READY)   ## Write docs/reference/cli.md from the commands; a test fails while the two differ.
	$(BIN)/python -m duly.cli.reference docs/reference/cli.md

fires: $(READY) ## Two minutes of schedules of every second under kills and wrong clocks, then an audit. ARGS="--seconds 20".
	$(BIN)/python -m bench.fires $(ARGS)

lock: $(READY)  ## Choose the newest versions of all dependencies and write requirements.lock.
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --no-header --quiet \
		--upgrade --output-file requirements.lock

clean:          ## Remove what was built; databases of `make up` stay.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Duly needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)
