# Two commands do all the set-up: `make demo` and `make test`. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint benchmark clean
.DELETE_ON_ERROR:

# torch comes first and alone: pip would otherwise choose a CUDA build
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[torch,dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/eaglectl demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(VENV)/.ready
	$(BIN)/python benchmarks/measure.py

clean:
	rm -rf $(VENV)
