# A fresh machine needs Python 3.11+ and make. `make quickstart` and `make test` install what they need into .venv.
#
#   TORCH_INDEX=URL    package index for torch alone, e.g. one of its CPU builds (default: as pip finds it)
#   CONSTRAINTS=FILE   the versions to install (default: constraints/x86_64.txt)
#   WORKERS=N          how many tests run side by side (default: 2)
#   PYTHON=COMMAND     for `make hardware`: the Python that has torch (default: python3)
#   WHEELS=FOLDER      for `make hardware`: wheels of packages that this Python lacks
#   MINUTES=N          for `make hardware`: end after so many minutes; go on with the same command

CONSTRAINTS ?= constraints/x86_64.txt
TORCH_INDEX ?=
WORKERS ?= 2
PYTHON ?= python3
WHEELS ?=
MINUTES ?= inf

BIN := .venv/bin
# A stamp is as old as the installation that it stands for; what it depends on decides whether to install again.
TRAIN := .venv/.installed-train
DEV := .venv/.installed-dev
NPU := .venv-npu/.installed
DEEPSPEED := .venv-deepspeed/.installed
CLIENTS := .venv-clients/.installed
TRITON := .venv-triton/.installed
DOCS := .venv-docs/.installed
# jieba reads its cache from TMPDIR, and /tmp is everyone's.
MKDOCS := TMPDIR=$(CURDIR)/.venv-docs NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs
DEEPSPEED_TESTS := tests/integration/train/test_deepspeed.py tests/integration/train/test_deepspeed_disk.py \
  tests/integration/train/test_deepspeed_kill_points.py \
  tests/integration/train/npu/test_deepspeed.py tests/integration/test_deepspeed_recipes.py \
  tests/integration/test_replaced_on_devices.py::test_deepspeed_trains_on_eight_ranks

export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup quickstart test check lint format types contracts unit golden soak mutants kills matrix matrix-npu drawn-recipes families compat npu-env clients-env triton-env deepspeed-env deepspeed-tests ascend-sim benchmarks hardware docs docs-serve clean

help: ## This list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

setup: $(DEV) ## Install everything for development into .venv.

quickstart: $(TRAIN) ## Install, train a small model, show what it learned.
	@$(BIN)/ascendtune quickstart

test: ## Everything that runs without accelerators: lint, types, contracts, all tests.
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint types contracts
	@$(MAKE) --no-print-directory npu-env || echo 'the tests on a simulated Ascend node will be skipped'
	@$(MAKE) --no-print-directory clients-env || echo 'the tests with the clients of ModelScope and wandb will be skipped'
	@$(MAKE) --no-print-directory triton-env || echo 'the tests of Triton kernels will be skipped'
	@$(MAKE) --no-print-directory deepspeed-env || echo 'the tests of DeepSpeed will be skipped'
	$(BIN)/pytest -n $(WORKERS) --dist worksteal || $(BIN)/python tools/failed_again.py $$?
	@if [ -f $(DEEPSPEED) ]; then $(MAKE) --no-print-directory deepspeed-tests; fi

check: lint types contracts unit ## What to run before a commit.

lint: $(DEV) ## ruff: rules and format; definitions that nothing uses; tensors without shapes.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/unused_definitions.py
	$(BIN)/python tools/undocumented_shapes.py

format: $(DEV) ## Let ruff rewrite what it can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEV) ## mypy --strict.
	$(BIN)/mypy

contracts: $(DEV) ## Which room may import which.
	$(BIN)/lint-imports --no-logo

unit: $(DEV) ## The tests that take seconds.
	$(BIN)/pytest tests/unit -n $(WORKERS) -m 'not soak and not long'

golden: $(DEV) ## Record help texts, the recipe's schema and submitted files anew; look at the difference before you commit it.
	for text in tests/golden/help/*.txt; do \
	  words=$$(basename $$text .txt | tr _ ' '); COLUMNS=80 $(BIN)/$$words --help > $$text || exit 1; \
	done
	$(BIN)/ascendtune recipe schema > tests/golden/recipe.schema.json
	PYTHONPATH=tests $(BIN)/python tests/submissions.py

soak: $(DEV) ## The tests that take minutes to hours.
	$(BIN)/pytest -m soak
	@if [ -f $(DEEPSPEED) ]; then \
	PYTHONPATH=$(CURDIR)/.venv-deepspeed/packages $(BIN)/pytest -m soak $(DEEPSPEED_TESTS); fi

mutants: $(DEV) ## Put faults into copies of the source; the tests must notice each. Writes docs/mutants.md.
	$(BIN)/python tests/mutants/run.py --write
	$(BIN)/python tests/mutants/drawn.py --write

kills: $(DEV) $(DEEPSPEED) ## Kill runs and merges at their operations on files, for each strategy. Writes docs/kills.md.
	PYTHONPATH=tests:$(CURDIR)/.venv-deepspeed/packages $(BIN)/python -m kills.run --write

matrix: $(DEV) $(DEEPSPEED) ## Train every combination of loss, tuner and strategy on CPU. Writes docs/matrix.md.
	PYTHONPATH=tests $(BIN)/python -m matrix.run cpu --write
	@if [ -f $(NPU) ]; then $(MAKE) --no-print-directory matrix-npu; \
	else echo 'not tried on a simulated Ascend node, which make npu-env prepares'; fi

matrix-npu: $(NPU) $(DEEPSPEED) ## The same on a simulated Ascend node, with the real ProcessGroupHCCL.
	PYTHONPATH=tests $(BIN)/python -m matrix.run npu --write

drawn-recipes: $(DEV) $(DEEPSPEED) ## Draw 100 recipes, and hold each against its plain form on one device.
	PYTHONPATH=tests $(BIN)/python -m matrix.drawn

families: $(DEV) ## Train a tiny model of every causal language model type of transformers. Writes docs/models.md.
	PYTHONPATH=tests $(BIN)/python -m families.run --write

compat: $(DEV) $(DEEPSPEED) ## Run LLaMA-Factory's own examples, or say why not; needs its source distribution. Writes docs/compat.md.
	PYTHONPATH=$(CURDIR)/tests:$(CURDIR)/.venv-deepspeed/packages $(BIN)/python tests/compat/run.py --write

npu-env: $(NPU) ## Put torch_npu beside .venv, for tests on a simulated Ascend node (Linux; needs g++ too).

clients-env: $(CLIENTS) ## Put the clients of ModelScope and wandb beside .venv, for their tests.

triton-env: $(TRITON) ## Put Triton beside .venv (200 MB), for tests of its kernels without a GPU.

deepspeed-tests: $(DEEPSPEED) ## The tests of DeepSpeed, which nothing else may see.
	export PYTHONPATH=$(CURDIR)/.venv-deepspeed/packages; \
	$(BIN)/pytest -n $(WORKERS) $(DEEPSPEED_TESTS) || $(BIN)/python tools/failed_again.py $$?

deepspeed-env: $(DEEPSPEED) ## Put DeepSpeed beside .venv, for its tests.

ascend-sim: $(NPU) ## A shell on a simulated Ascend node: torch_npu works, on host memory.
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=tests $(BIN)/python -m ascend_node.cann

benchmarks: $(DEV) ## Measure speed and memory beside peers, which get environments of their own; takes two hours.
	for each in start_up first_step throughput host_time data_preparation data_peers merge comm watcher; do \
	  OMP_NUM_THREADS=1 RAYON_NUM_THREADS=1 $(BIN)/python benchmarks/$$each.py || exit 1; \
	done

hardware: ## On a machine with a GPU, without .venv: tests against the CPU, then the speed table. Writes docs/hardware/.
	PYTHONPATH=$(CURDIR)/benchmarks $(PYTHON) -m hardware.run --wheels '$(WHEELS)' --minutes $(MINUTES)

docs: $(DOCS) ## Build the documentation as a site, in both languages: build/site/index.html.
	$(MKDOCS) build --quiet --strict

docs-serve: $(DOCS) ## Show the documentation at http://127.0.0.1:8000, with search.
	$(MKDOCS) serve --dev-addr 127.0.0.1:8000

clean: ## Remove .venv and caches; runs stay.
	rm -rf .venv .venv-npu .venv-deepspeed .venv-clients .venv-triton .venv-docs build/site .mypy_cache .ruff_cache .pytest_cache \
	  .import_linter_cache .hypothesis .mutants

$(BIN)/python:
	@python=; \
	for name in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	  if command -v $$name >/dev/null && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    python=$$name; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then echo 'error: no Python 3.11 or newer was found; install it and run make again' >&2; exit 3; fi; \
	$$python -m venv .venv

$(TRAIN): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo 'installing into .venv, about 1.5 GB; the first time takes a minute or more'
ifneq ($(TORCH_INDEX),)
	$(BIN)/pip install --quiet --no-deps --constraint $(CONSTRAINTS) --index-url $(TORCH_INDEX) torch
endif
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[train]'
	@touch $@

$(DEV): $(TRAIN)
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[train,dev]'
	@touch $@

# Not a virtual environment but a folder to put before .venv: where torch_npu is installed and CANN is not, torch cannot be
# imported at all. --no-deps: what it needs is in .venv; its other requirements are for tools that the tests do not use.
$(NPU): constraints/torch-npu.txt | $(DEV)
	@rm -rf .venv-npu
	$(BIN)/pip install --quiet --no-deps --retries 1 --timeout 30 --target .venv-npu/packages --requirement $<
	@touch $@

# Beside .venv too: where it is installed, other libraries import it, which takes every process two seconds.
$(DEEPSPEED): constraints/deepspeed.txt | $(DEV)
	@rm -rf .venv-deepspeed
	$(BIN)/pip install --quiet --no-deps --retries 1 --timeout 30 --target .venv-deepspeed/packages --requirement $<
	@touch $@

# Beside .venv too: where wandb is installed, transformers and TRL import it.
$(CLIENTS): constraints/clients.txt | $(DEV)
	@rm -rf .venv-clients
	$(BIN)/pip install --quiet --no-deps --retries 1 --timeout 30 --target .venv-clients/packages --requirement $<
	@touch $@

# Beside .venv too: torch and transformers look for it, and import more where it is.
$(TRITON): constraints/triton.txt | $(DEV)
	@rm -rf .venv-triton
	$(BIN)/pip install --quiet --no-deps --retries 1 --timeout 30 --target .venv-triton/packages --requirement $<
	@touch $@

# In an environment of its own: nothing that trains needs it.
$(DOCS): constraints/docs.txt | $(BIN)/python
	@rm -rf .venv-docs
	@$(BIN)/python -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --requirement $<
	@touch $@
