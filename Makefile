# Everything runs in a virtual environment of the repository's own; CI calls only these targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint bench clean

demo: .make-demo
	$(BIN)/paceline run $(DEMO_RANKS) examples/digits.py

# Two ranks on CPUs; on a machine with GPUs one rank per GPU.
DEMO_RANKS = $(shell $(BIN)/python scripts/demo_ranks.py)

# Most tests wait for processes rather than compute, so three at a time suit two cores.
PARALLEL := -n 3 --dist loadfile
# The fault suite asserts what is promised to users, in seconds, of runs that have the machine to themselves.
ALONE := -n 1

test: .make-test
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not namespaces"

test-all: test
	bash scripts/install_system_packages.sh
	$(BIN)/python -m pytest $(PARALLEL) -m "slow or namespaces" --ignore=tests/faults
	$(BIN)/python -m pytest $(ALONE) tests/faults

lint: .make-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/figures.py

bench: .make-test
	$(BIN)/python benchmarks/launch.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/sampler.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/roll_call.py
	$(BIN)/python benchmarks/explain.py

clean:
	rm -rf $(VENV) .make-* runs .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and alone: its exact version keeps the packages that follow from choosing another build.
.make-demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e ".[examples]"
	touch $@

.make-test: .make-demo
	$(PIP) -e ".[examples,dev,peers]"
	touch $@
