# A fresh clone needs only `make demo` and `make test`; both create .venv first.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# With an NVIDIA driver, install the default torch; otherwise its CPU build.
CONSTRAINT := $(if $(shell command -v nvidia-smi 2>/dev/null),,-c constraints/cpu.txt)

.PHONY: demo test lint types unit test-slow test-gpu docs notebooks dist faults load fuzz fuzz-long proofs oldest newest pythons lock audit clean env

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints/cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fgnn needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check $(CONSTRAINT) torch
	$(PY) -m pip install --quiet --disable-pip-version-check $(CONSTRAINT) -e '.[dev]'
	touch $@

demo: env
	$(PY) -m fgnn demo

test: lint types unit

lint: env
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: env
	$(PY) -m mypy

unit: env
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 -m "not slow and not gpu"

test-slow: env
	$(PY) -m pytest -m "slow"

# Needs no installation, so it also runs on a machine without network access. With pytest-xdist, ARGS="-n 14" runs it in
# that many processes.
test-gpu:
	OMP_NUM_THREADS=1 PYTHONPATH=src:$(PYTHONPATH) $(PYTHON) -m pytest -m gpu -p no:cacheprovider -p no:benchmark $(ARGS)

# Fault injection; results in benchmarks/results/faults.json. Takes about 15 minutes.
faults: env
	OMP_NUM_THREADS=1 $(PY) -m tests.faults

# Load tests (large models, many models, long runs, many clients) with peak memory; results in benchmarks/results/load.json.
load: env
	OMP_NUM_THREADS=1 $(PY) -m tests.load

# A million mutated inputs for the parsers; results in benchmarks/results/fuzz.json. Takes about half an hour. Uses coverage
# guidance if atheris can be installed.
fuzz: env
	-$(PY) -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	OMP_NUM_THREADS=1 $(PY) -m tests.fuzz.run --jobs 2 --cases 100000 --seconds 18 --guided-seconds 2

# Ten million inputs, without the guided search; the figures are added to those of earlier runs, so that it can be interrupted.
fuzz-long: env
	OMP_NUM_THREADS=1 $(PY) -m tests.fuzz.run --jobs 2 --cases 300000 --seconds 1200 --guided-seconds 0 --add

# A million models whose every proof is checked in exact integers, and a hundred thousand whose probabilities are; results in
# benchmarks/results/proofs.json and probabilities.json. Continues where an earlier run ended.
proofs: env
	OMP_NUM_THREADS=1 $(PY) -m tools.check_proofs --models 1000000
	OMP_NUM_THREADS=1 $(PY) -m tools.check_probabilities --models 100000

# The tests that depend most on other packages, with the oldest and the newest versions; results in
# benchmarks/results/sets.json.
oldest newest: %: constraints/%.txt
	$(PYTHON) -m venv $(or $(AT),build/$@)
	$(or $(AT),build/$@)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/$@.txt torch
	$(or $(AT),build/$@)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/$@.txt -e '.[all]' \
	  pytest hypothesis pytest-timeout torchmetrics psutil
	OMP_NUM_THREADS=1 $(or $(AT),build/$@)/bin/python -m tests.sets $@

# The newest versions with other interpreters. Each environment takes several gigabytes if torch includes CUDA.
PYTHONS ?= python3.12 python3.13
pythons:
	for python in $(PYTHONS); do \
	  rm -rf build/other; $(MAKE) newest PYTHON=$$python AT=build/other || exit 1; \
	done
	rm -rf build/other

# Every installed package with its version, the lock file.
lock: env
	$(PY) -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints/lock.txt

# Look up known vulnerabilities of the locked packages. Needs the network; fails if a package could not be looked up.
audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints/lock.txt

# Run the notebooks and store their outputs.
notebooks: env
	OMP_NUM_THREADS=1 $(PY) -m tools.notebooks

# Build the site into docs/_build/html. Warnings are errors. Notebooks are shown with their stored outputs.
docs: env
	OMP_NUM_THREADS=1 $(PY) -m tools.town_picture
	OMP_NUM_THREADS=1 $(PY) -m sphinx -W --keep-going -b html docs docs/_build/html

# Build a wheel and a source archive into dist; install with: pip install dist/fgnn-*.whl
dist: env
	rm -rf dist build
	$(PY) -m build --no-isolation --outdir dist .
	$(PY) -m twine check --strict dist/*
	ls -l dist

clean:
	rm -rf $(VENV) build dist docs/_build .mypy_cache .ruff_cache .pytest_cache
