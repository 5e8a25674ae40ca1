# `make install` sets up; `make run` and `make test` do so first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install run test clean

install: .venv/ready

run: .venv/ready
	$(BIN)/learn2pfed run polynomial

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv runs
