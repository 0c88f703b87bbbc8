# Two commands on a fresh machine (Python >= 3.11 and make): `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help setup demo test test-engines test-compiled compile uncompile check lint types imports format bench fuzz lock clean

help:
	@echo "make demo          set up, then the main job on the embedded server (about 90 s)"
	@echo "make test          set up, then the tests (minutes)"
	@echo "make test-engines  the tests that need a real engine: vLLM on the CPU (installs 3.5 GB once, in a cache)"
	@echo "make compile       the core as machine code: simulations twice as fast, a cheaper client (make uncompile undoes it)"
	@echo "make check         lint, types, import rules"
	@echo "make bench         the benchmarks that docs/ quotes, with the core compiled where that can be"
	@echo "make fuzz          fuzz the HTTP and SSE decoding, guided by coverage (FUZZ_SECONDS=60)"
	@echo "make lock          resolve requirements.lock again"

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "lmperf needs Python >= 3.11; name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: setup
	$(BIN)/lmperf demo

test: setup
	$(BIN)/python -m pytest -m "not engine"

test-engines: setup
	$(BIN)/python -m pytest -m engine -s

compile: setup
	$(BIN)/python -m lmperf.compiled

uncompile: setup
	$(BIN)/python -m lmperf.compiled --remove

# In a copy, so that the checkout stays plain Python. Traces beside the checkout lie beside the copy too.
COMPILED := build/compiled
test-compiled: setup
	rm -rf $(COMPILED) && mkdir -p $(COMPILED)
	{ git ls-files -z; git ls-files -oz --exclude-standard; } | tar --null -T - -cf - | tar -xf - -C $(COMPILED)
	test ! -e ../shared || ln -sfn "$(abspath ../shared)" build/shared
	cd $(COMPILED) && "$(abspath $(BIN))/python" -m lmperf.compiled
	cd $(COMPILED) && "$(abspath $(BIN))/python" -m pytest -m "not engine" tests/scheduler tests/offline tests/calibration tests/wire tests/live tests/workers -n 2

check: lint types imports

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports --no-logo

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

FUZZ_SECONDS ?= 60

fuzz: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/fuzz atheris==3.0.0
	PYTHONPATH=$(VENV)/fuzz $(BIN)/python -m tests.fuzz.fuzz_wire $(FUZZ_SECONDS)

bench: setup
	-$(BIN)/python -m lmperf.compiled
	$(BIN)/python -m benchmarks.run_all

lock:
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-index-url --output-file requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
