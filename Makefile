# Everything runs from a fresh clone with only Python (3.11 or 3.12) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help demo test test-slow test-gpu lint records-check clean

help:
	@echo "make demo           install, then train and check a network in about two minutes"
	@echo "make test           install, then lint, type-check, test and check the records"
	@echo "make test-slow      the tests marked slow"
	@echo "make test-gpu       the tests marked gpu, on a machine with CUDA"
	@echo "make lint           ruff and mypy --strict"
	@echo "make records-check  every decimal number of the README is in a record, every metric has its error"
	@echo "make clean          remove the virtual environment and caches"

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/fishnets demo --overwrite

test: lint $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not slow and not gpu"
	$(MAKE) records-check

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

test-gpu: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu --device cuda

lint: $(INSTALLED)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

records-check: $(INSTALLED)
	$(BIN)/python -c "import sys; from fishnets.experiments.records import main; sys.exit(main())" results README.md

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis demo
