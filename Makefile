# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := examples/depth_segmentation

.PHONY: help setup demo test lint bench clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Of 14,000 files that pip would compile, one after another, a few thousand are ever imported. They are compiled then,
# and once: where a shell tells Python to keep nothing, every process would compile PyTorch anew, which takes longer
# than most tests.
unexport PYTHONDONTWRITEBYTECODE

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev,examples]'
	touch $@

setup: $(VENV)/.ready ## install memplan and what its tests need into .venv

# On the CPU the C library keeps freed blocks and the resident set varies by 5 to 10 % from run to run; with a fixed
# threshold it gives them back, and runs repeat.
demo: setup ## run the main job on a real example: estimate, probe, recommend, patch
	cd $(DEMO) && MALLOC_MMAP_THRESHOLD_=1048576 ../../$(BIN)/memplan probe \
		configs/baseline/unet_small_motorcycle_256x256.py --device cpu --budget 1.4GiB --max-util 0.8

# Each of two workers computes in one thread: on two cores, threads that wait for each other cost tests of whole
# trainings a sixth of their time.
test: setup lint ## run every check and all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

lint: setup ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## the benchmarks that need no data of their own
	$(BIN)/python benchmarks/startup.py

clean: ## remove everything that setup and runs made
	rm -rf $(VENV) .memplan examples/*/.memplan build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
