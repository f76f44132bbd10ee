# Every target sets up what it needs in .venv; a second call finds it there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint bench docs clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/bayeslearn demo

test: lint
	$(BIN)/python -m pytest -n auto --dist loadgroup

test-slow: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadgroup --slow all

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/hmc_gradients.py
	$(BIN)/python benchmarks/import_time.py

docs: $(READY)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site demo
