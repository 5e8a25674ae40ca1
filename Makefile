# Two commands do everything: `make run` and `make test`. Both set the machine up first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test clean

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
