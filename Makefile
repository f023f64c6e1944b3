# Everything happens in .venv, which the first target that needs it makes.
PYTHON ?= python3
OLDEST_PYTHON ?= python3.11
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile
BIN := .venv/bin
OLDEST := .venv-oldest/bin
.DEFAULT_GOAL := help
.PHONY: help demo test test-oldest fuzz lint stub bench clean

help:
	@echo "make demo   evaluate a skip and a skipless model on embedded data"
	@echo "make test   run the tests"
	@echo "make fuzz   read thousands of damaged files (SEED=1 COUNT=400)"
	@echo "make lint   ruff and mypy"
	@echo "make stub   write the types of the public names, after a change of settings"
	@echo "make bench  run the benchmarks"
	@echo "make test-oldest  the tests with the lowest versions in pyproject.toml; slow, not in CI"

# The stamp is written last: it stands only for an installation that went through.
.venv/installed: pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "skipbench needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu,test,dev]'
	@touch $@

demo: .venv/installed
	$(BIN)/skipbench demo

test: .venv/installed
	$(BIN)/python -m pytest $(PYTEST_ARGS)

fuzz: .venv/installed
	PYTHONPATH=tests $(BIN)/python -m fuzz --seed $(or $(SEED),0) --count $(or $(COUNT),400)

# torch with CUDA is several gigabytes: CI does not run it, and `make test` does not need it.
.venv-oldest/installed: pyproject.toml Makefile
	$(OLDEST_PYTHON) -m venv .venv-oldest
	$(OLDEST)/python -m pip install --quiet --disable-pip-version-check uv
	$(OLDEST)/uv pip install --quiet --python $(OLDEST)/python --resolution lowest-direct --editable '.[cpu,test]'
	@touch $@

test-oldest: .venv-oldest/installed
	$(OLDEST)/python -m pytest $(PYTEST_ARGS)

stub: .venv/installed
	$(BIN)/python tests/stub.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv .venv-oldest demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache
