# Everything runs in a virtual environment of the repository's own; CI calls only these targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-ci test-all test-device compat lint docs bench bench-links bench-tune release recordings gpu-report \
	cluster cluster-stop clean

# Tests start thousands of interpreters. Where the environment forbids bytecode, as in many containers, each would
# compile the package and the tests anew.
export PYTHONDONTWRITEBYTECODE :=

# Two ranks on CPUs; on a machine with GPUs one rank per GPU.
demo: .make-demo
	ranks=$$($(BIN)/python scripts/demo_ranks.py) && $(BIN)/paceline run $$ranks examples/digits.py

# Most tests wait for processes rather than compute, so four at a time suit two cores.
PARALLEL := -n 4 --dist worksteal
# The same with all tests on a Slurm cluster in one process, beside the others (tests/conftest.py).
WITH_SLURM := -n 3 --dist loadgroup
SHORT := not slow and not namespaces and not slurm and not alone and not healthy and not browser
QUICK := $(SHORT) and not ci
# The tests of real ranks that hold on an accelerator too.
ON_DEVICE := PYTHONPATH=$(CURDIR)/tests/device:$(CURDIR)/tests/device/autoload EMULATED_DEVICE=devices=4
RANKS_ON_DEVICE := $(foreach name,same_result checkpoint preemptible fsdp trainer mesh,tests/ranks/test_$(name).py)
# The fault suite asserts what is promised to users, in seconds, of runs that have the machine to themselves; the tests
# on a Slurm cluster share one, and some take a node away from it.
ALONE := -n 1

# A quick test takes at most 15 s on two idle cores, or it is marked slow; which took longer is listed.
test: .make-test
	$(BIN)/python tests/device/emulated/build.py
	$(BIN)/python -m pytest $(PARALLEL) --durations 0 --durations-min 15 -m "$(QUICK)"

# The part of the other suites that tests/representative.txt names: the whole takes longer than CI may.
test-ci: system-packages test
	$(BIN)/python -m pytest $(WITH_SLURM) -m "(ci and $(SHORT) or healthy and not slow or representative) and not alone" --ignore=tests/faults
	$(ON_DEVICE) $(BIN)/python -m pytest $(PARALLEL) -m "$(QUICK) and not cpu" $(RANKS_ON_DEVICE)
	$(BIN)/python -m pytest $(ALONE) -m "alone or (browser and not slow)"
	$(BIN)/python -m pytest $(ALONE) -m "representative and not alone" tests/faults

system-packages:
	bash scripts/install_system_packages.sh

test-all: system-packages test
	$(BIN)/python -m pytest $(PARALLEL) -m "(ci or slow or namespaces or healthy) and not slurm and not alone" --ignore=tests/faults
	$(BIN)/python -m pytest $(ALONE) -m "alone or browser"
	$(BIN)/python -m pytest $(ALONE) tests/faults
	$(BIN)/python -m pytest $(ALONE) -m slurm

# All on the emulated accelerator: its own tests, and those of the training library and of real ranks.
test-device: .make-test
	$(BIN)/python tests/device/emulated/build.py
	$(BIN)/python -m pytest $(PARALLEL) tests/device
	$(ON_DEVICE) $(BIN)/python -m pytest $(PARALLEL) -m "$(QUICK) and not cpu" tests/unit/train $(RANKS_ON_DEVICE)

# On another torch, in an environment of its own: make compat TORCH=2.14.1. The index has CUDA builds of most versions,
# several gigabytes each.
COMPAT := .compat/$(TORCH)
COMPAT_PIP := $(COMPAT)/bin/python -m pip install --quiet --disable-pip-version-check
COMPAT_TESTS := tests/unit tests/ranks tests/launch

compat: $(COMPAT)/.made
	$(COMPAT)/bin/python -m pytest $(PARALLEL) -m "$(QUICK)" $(COMPAT_TESTS)

$(COMPAT)/.made: pyproject.toml constraints.txt
	@test -n "$(TORCH)" || { echo "which torch? make compat TORCH=2.14.1" >&2; exit 2; }
	$(PYTHON) -m venv $(COMPAT)
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(COMPAT)/constraints.txt
	$(COMPAT_PIP) torch==$(TORCH)
	$(COMPAT_PIP) -c $(COMPAT)/constraints.txt -e ".[torch,examples,dev,peers,ecosystem,why,report]"
	touch $@

lint: .make-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/figures.py

# The documentation site, .site/html; a link or an anchor that leads nowhere is an error.
docs: .make-test
	$(BIN)/python scripts/build_site.py

bench: .make-test
	$(BIN)/python benchmarks/launch.py --rounds 3
	$(BIN)/python benchmarks/overhead.py --rounds 3
	$(BIN)/python benchmarks/rank_checks.py
	$(BIN)/python benchmarks/sampler.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/roll_call.py
	$(BIN)/python benchmarks/explain.py
	$(BIN)/python benchmarks/stages.py --some 10
	$(BIN)/python benchmarks/recompute.py
	$(PIP) -e ".[benchmarks]"
	$(BIN)/python benchmarks/input.py --rounds 2

# Those of links, which need root and iproute2, and tune's; each takes minutes.
bench-links: .make-test
	$(BIN)/python benchmarks/network.py
	$(BIN)/python benchmarks/forecast.py

bench-tune: .make-test
	$(BIN)/python benchmarks/tune.py

# The wheel and the sdist in dist/, tried in a fresh environment of each Python of this machine: the commands that need
# no torch, and the program of the README in the Python of .venv; make release TORCH=yes tries that one everywhere.
release: .make-demo
	$(PIP) -e ".[release]"
	$(BIN)/python scripts/release.py --torch $(if $(filter yes,$(TORCH)),everywhere,here)

# What only GPUs can show, as one file to send; some twenty minutes on two of them. Each part says what it came to.
gpu-report: .make-test
	$(BIN)/python scripts/gpu_report.py

# Sessions at a terminal as pictures, from real runs: docs/raw/recordings.
recordings: .make-test
	$(BIN)/python scripts/recordings.py

# A Slurm cluster of two nodes on this machine, to try things by hand: eval "$(make cluster)"
cluster:
	@$(PYTHON) tests/slurm/cluster.py start .cluster

cluster-stop:
	@$(PYTHON) tests/slurm/cluster.py stop .cluster

clean: cluster-stop
	rm -rf $(VENV) dist .compat .cluster .site .cache .device .make-* runs .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and alone: its exact version keeps the packages that follow from choosing another build.
.make-demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e ".[torch,examples]"
	touch $@

.make-test: .make-demo
	$(PIP) -e ".[torch,examples,dev,docs,peers,ecosystem,why,report,release]"
	touch $@
