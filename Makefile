# make demo    explain photos and texts with trained models; writes out/demo/index.html
# make test    the whole default test run
# make slow    the longer tests
# make optimized   the unit tests under python -O, which drops asserts: checks of arguments must not be asserts
# make lint    ruff and mypy
# make speed   each method's cost beside its budget and its peers
# make speed-gpu   the same on a GPU, prepared once, in several precisions and batch sizes
# make speed-metrics   what a sweep costs beside its forward passes, and beside Quantus
# make docs    the generated pages and tables of the documentation
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test slow optimized lint speed speed-gpu speed-metrics docs clean

.venv/pip:
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo: .venv/pip pyproject.toml constraints.txt
	@echo "Installing mhex and what it needs; the first time takes some minutes."
	$(INSTALL) --editable ".[demo]"
	touch $@

.venv/dev: .venv/pip pyproject.toml constraints.txt
	@echo "Installing mhex and its development tools; the first time takes some minutes."
	$(INSTALL) --editable ".[dev]"
	touch $@

demo: .venv/demo
	$(BIN)/mhex demo

# One thread for each of the workers: they share the cores. Files stay whole, because their tests share models and calls.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test: .venv/dev
	$(PYTEST) -m "not slow"

slow: .venv/dev
	$(PYTEST) -m slow

optimized: .venv/dev
	PYTHONOPTIMIZE=1 $(PYTEST) -m "not slow" tests/unit

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

speed: .venv/dev
	$(BIN)/python benchmarks/speed.py

speed-gpu: .venv/dev
	$(BIN)/python benchmarks/speed_gpu.py

speed-metrics: .venv/dev
	$(BIN)/python benchmarks/speed_metrics.py

docs: .venv/dev
	$(BIN)/python docs/generate.py --results

clean:
	rm -rf .venv out build dist .mypy_cache .ruff_cache .pytest_cache
