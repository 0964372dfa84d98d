# `make quickstart` shows everything; `make test` tests everything that needs no GPU. Both make .venv first.
#
# PYTHON=python3.12      interpreter of a new .venv
# ALORA_TORCH=cpu|cuda   build of torch and vLLM; decided by what is there unless given

SHELL := bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHON VENV ALORA_TORCH
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# Processes of one thread each: toy models are too small for more threads to help. Many tests wait for a process that
# they started, so three keep two cores busy; an engine of vLLM leaves no such gaps.
# tests/conftest.py orders the files; tests/vllm/conftest.py names those that share an engine, and so a process.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --dist loadfile --no-loadscope-reorder --durations 25 --durations-min 10

# On a GPU the default is bfloat16, and the tests say what float32 gives.
ON_CPU := CUDA_VISIBLE_DEVICES=

.DEFAULT_GOAL := help
.PHONY: help setup quickstart static check test nightly bench vllm-matrix gpu docs notebooks clean

help: ## the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

setup: ## make .venv with everything, or bring it up to date
	@scripts/setup.sh

quickstart: ## train, certify and export one policy on SmolLM2-135M, then score with it; installs no more than it needs
	@scripts/setup.sh quickstart
	$(BIN)/alora train recipe=quickstart

static: setup # format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

check: static ## format, lint, types, import contracts, unit tests
	$(ON_CPU) $(PYTEST) -n 2 tests/unit

test: static ## what needs no GPU, real vLLM on CPU included; the longest of it is left to `make nightly`
	$(ON_CPU) $(PYTEST) -n 3 -m 'not nightly' tests/unit tests/integration tests/docs
	$(PYTEST) -n 2 -m 'not nightly' tests/vllm

# Of vLLM by itself: its engines, and what else runs on a CPU, share no process.
nightly: setup ## planted faults, many engines, processes, launchers, notebooks, 4-bit bases (tests/tiers.py)
	$(ON_CPU) $(PYTEST) -n 3 -m nightly tests/integration tests/docs tests/notebooks
	$(PYTEST) -n 2 -m nightly tests/vllm

bench: setup ## the serving benchmark on what is here: a GPU, or the three documented CPU runs; into runs/serving_*
	if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  $(BIN)/alora bench serving bench=gpu output=runs/serving_gpu; \
	else \
	  failed=0; \
	  $(BIN)/alora bench serving bench=cpu output=runs/serving_cpu || failed=$$?; \
	  $(BIN)/alora bench serving bench=cpu 'bench.targets=[q_proj,k_proj,v_proj,o_proj]' \
	    'bench.serving.workloads=[grid]' output=runs/serving_cpu_attention || failed=$$?; \
	  $(BIN)/alora bench serving bench=cpu_open_loop output=runs/serving_cpu_open_loop || failed=$$?; \
	  exit $$failed; \
	fi

vllm-matrix: setup ## the vLLM tests on every vLLM version that this torch serves
	$(BIN)/python scripts/vllm_matrix.py --out benchmarks/results/vllm_matrix.json

docs: setup ## run every command of the README and of docs/, then build the site into site/ with its links checked
	$(BIN)/python scripts/write_reference.py --check
	$(BIN)/python scripts/run_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

notebooks: setup ## run the notebooks and write their outputs back
	$(BIN)/python scripts/run_notebooks.py

gpu: setup ## what a GPU is asked first, cell by cell into runs/gpu; without one the same cells at toy sizes
	failed=0; \
	$(BIN)/python -m scripts.gpu || failed=$$?; \
	$(BIN)/pytest tests/integration/prefix/test_on_a_gpu.py || failed=$$?; \
	exit $$failed

clean: ## remove caches and builds; .venv and runs stay
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find alora tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
