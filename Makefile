# Two commands: `make demo` and `make test`. Each sets up what it needs in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two test processes with one thread each use two cores better than one process with two.
JOBS ?= 2

.PHONY: demo test test-slow lint bench coverage clean

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("graphmsda needs Python 3.11 or newer; set PYTHON=python3.12, say") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/installed
	$(BIN)/graphmsda demo

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS)

test-slow: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS) -m slow --timeout 3600

coverage: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS) --cov=src/graphmsda --cov-report term-missing:skip-covered

bench: $(VENV)/installed
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
