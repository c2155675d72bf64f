# Thin: every target is one tool. `make help` lists them; ARGS= passes more to the tool.
PYTHON ?= python3
TORCH ?= 2.13.0# the torch that `make constraints` tests
ARGS ?=
FRONTENDS ?= 0# of the servers that `make chaos` starts

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

PACKAGES := bench clients deploy kernels models python scheduler server training
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help serve test test-fast test-golden test-deploy explore fuzz chaos soak docs lint format bench bench-gpu constraints clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

serve: $(VENV)/with-serve ## start the server; ARGS="--model DIR --port 8001"
	exec $(BIN)/asynclane serve $(ARGS)

unexport PYTHONDONTWRITEBYTECODE  # with it, each process of the tests compiles them all

# One process for each core, each with one thread: most of the time goes to Python, which has no more.
test: $(VENV)/with-test ## run the tests; ARGS="-k lanes -x"
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto --dist=worksteal --ignore=tests/deploy $(ARGS)

# Without the files that take most of the time: they run the embedded model, processes or long properties.
FAST := tests/test_architecture.py tests/test_words.py tests/scheduler tests/server tests/clients
SLOW := tests/scheduler/test_properties.py tests/server/api/test_blocks.py tests/server/api/test_page.py \
  tests/server/cli/test_generate.py tests/server/cli/test_inspect.py tests/server/cli/test_main.py \
  tests/server/http/test_body.py tests/server/http/test_live.py tests/server/text/test_detokenizer.py \
  tests/server/text/test_lanes.py tests/server/text/test_published.py

test-fast: $(VENV)/with-test ## run the quick tests, 55 s on two cores; ARGS="-k lanes -x"
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto --dist=worksteal $(FAST) $(SLOW:%=--ignore=%) $(ARGS)

test-golden: $(VENV)/with-test ## all golden prompts, batches and schedules, of which `make test` runs a part
	GOLDEN=all OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto --dist=worksteal \
	  $$(grep -rlE --include='test_*.py' 'support\.(scale|cases|golden|schedules) import' tests) $(ARGS)

# Apart, because they install packages and start Helm, Prometheus, nginx and Ray.
test-deploy: $(VENV)/with-dev ## check deploy/ and the Dockerfile; skips what the machine lacks
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto --dist=loadfile tests/deploy $(ARGS)

# Each run has random numbers of its own, where other targets have the same ones in each run.
explore: $(VENV)/with-test ## look for new random schedules and inputs that break a promise; ARGS="-k chunked"
	EXPLORE=1 GOLDEN=all OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto --dist=worksteal \
	  $$(grep -rlE --include='test_*.py' 'import hypothesis|from hypothesis|support\.schedules import' tests) $(ARGS)

fuzz: $(VENV)/with-test ## fuzz a server from its OpenAPI document for five minutes; ARGS="--seconds 900 --seed 2"
	$(BIN)/python -m tests.e2e.fuzz $(ARGS)

chaos: $(VENV)/with-test ## 20,000 faults, all bombs, and overload, with figures for two idle cores; FRONTENDS=3
	CHAOS=all OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=auto --dist=worksteal tests/chaos/test_faults.py \
	  $$(grep -rlE --include='test_*.py' 'import .*SLOW|^ +SLOW,' tests) $(ARGS)
	$(BIN)/python -m tests.chaos.bombs --frontends $(FRONTENDS)
	$(BIN)/python -m tests.chaos.overload --frontends $(FRONTENDS)

soak: $(VENV)/with-test ## ten minutes of good and bad requests to one server; ARGS="--seconds 60 --frontends 3"
	$(BIN)/python -m tests.chaos.soak $(ARGS)

# The variable turns off a notice about mkdocs' successors.
docs: $(VENV)/with-docs ## build the site of README and docs/ in build/site, with all links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)

lint: $(VENV)/with-dev ## check style, types and the Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

format: $(VENV)/with-dev ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# -P keeps this folder off sys.path, where `kernels` would hide Hugging Face's package of that name.
bench: $(VENV)/with-bench ## measure answer quality and host time
	$(BIN)/python -P -m asynclane.bench.quality $(ARGS)
	$(BIN)/python -P -m asynclane.bench.steps.host

LEVELS := 1,2,4,8,16,32,64,128,256

bench-gpu: $(VENV)/with-bench ## measure serving, steps and kernels on a GPU, in minutes; writes results, plots and docs/performance.md
	$(BIN)/python -P -m asynclane.bench.steps.offline --shape llada-8b --json bench/results/offline-llada-8b.json
	$(BIN)/python -P -m asynclane.bench.steps.offline --shape dream-7b --json bench/results/offline-dream-7b.json
	$(BIN)/python -P -m asynclane.bench.steps.offline --shape sdar-8b --page-size 16 --json bench/results/offline-sdar-8b.json
	$(BIN)/python -P -m asynclane.bench.steps.offline --shape llada2-mini --page-size 32 --json bench/results/offline-llada2-mini.json
	$(BIN)/python -P -m asynclane.bench.steps.offline --shape llada-moe-7b --json bench/results/offline-llada-moe-7b.json
	$(BIN)/python -P -m asynclane.bench.kernels --json bench/results/kernels.json
	$(BIN)/python -P -m asynclane.bench.steps.roofline
	$(BIN)/python -P -m asynclane.bench.serving --shape sdar-8b --mixed 64 --levels $(LEVELS) --json bench/results/serving-sdar-8b.json
	$(BIN)/python -P -m asynclane.bench.serving --shape llada2-mini --levels $(LEVELS) --json bench/results/serving-llada2-mini.json
	$(BIN)/python -P -m asynclane.bench.serving --shape llada-8b --levels $(LEVELS) --json bench/results/serving-llada-8b.json
	$(BIN)/python -P -m asynclane.bench.serving.picture
	for shape in sdar-8b llada2-mini llada-8b; do $(BIN)/python -P -m asynclane.bench.capacity \
	  bench/results/serving-$$shape.json --json bench/results/capacity-$$shape.json || exit 1; done
	$(BIN)/python -P -m asynclane.bench.report.tables --write docs/performance.md

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .schemathesis \
	  tests/e2e/node/node_modules tests/deploy/node/node_modules
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +

constraints: ## pin what a fresh environment resolves to now
	rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	build/constraints/bin/pip install --quiet --upgrade setuptools 'torch==$(TORCH)' '.[dev,bench,docs]'
	sed -n '/^#/p' constraints.txt > build/constraints.txt
	build/constraints/bin/pip freeze --all --exclude asynclane --exclude pip | sed 's/+[a-z0-9.]*$$//' \
	  | grep -Ev '^(nvidia-|cuda-|triton)' >> build/constraints.txt
	mv build/constraints.txt constraints.txt && rm -rf build/constraints

# --- The environment: one stamp for each set of extras ------------------------------------------------------

NOTICE = pip downloads what is missing in $(VENV). On Linux torch for CUDA has gigabytes: without a GPU, stop this \
  and set PIP_EXTRA_INDEX_URL to an index of CPU wheels, as README.md has it.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null \
	  || { echo "asynclane needs Python 3.11, 3.12 or 3.13, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1): give PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "$(NOTICE)"
	$(PYTHON) -m venv $(VENV)

# An editable install links file by file, so it is made again when a file comes or goes.
$(VENV)/files: $(BIN)/python FORCE
	@find $(PACKAGES) -name __pycache__ -prune -o -type f -print | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(VENV)/with-serve: EXTRAS =
$(VENV)/with-test: EXTRAS = [test]
$(VENV)/with-dev: EXTRAS = [dev]
$(VENV)/with-bench: EXTRAS = [bench]
$(VENV)/with-docs: EXTRAS = [docs]

# Silent where only files of the project came or went, which takes seconds.
QUIET = $(if $(filter pyproject.toml constraints.txt,$?),,--quiet)

$(VENV)/with-serve $(VENV)/with-test $(VENV)/with-dev $(VENV)/with-bench $(VENV)/with-docs: pyproject.toml constraints.txt $(VENV)/files
	$(PIP) install $(QUIET) --constraint constraints.txt setuptools
	$(PIP) install $(QUIET) --constraint constraints.txt --no-build-isolation \
	  --config-settings editable_mode=strict --editable '.$(EXTRAS)'
	@touch $@
