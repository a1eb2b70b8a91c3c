# Two commands matter: `make demo` and `make test`. Each sets up what it needs in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo
DATA := packages/fashion-mnist
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo picture test test-slow test-hosted lint docs bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt $(DATA)/pyproject.toml | $(BIN)/python
	$(INSTALL) -e ".[dev]" -e $(DATA)
	touch $(STAMP) $(DEMO)

$(DEMO): pyproject.toml constraints.txt $(DATA)/pyproject.toml | $(BIN)/python
	$(INSTALL) -e ".[demo]" -e $(DATA)
	touch $(DEMO)

setup: $(STAMP)

demo: $(DEMO)
	$(BIN)/fafed compare fashion-mnist-high --set rounds=40 --set eval_every=4 --runs demo -o demo/report

picture: demo  # the one in the README
	cp demo/report/curves-rounds.svg docs/images/demo.svg

test: $(STAMP) lint
	$(BIN)/python -m pytest -n 3 --dist worksteal  # of two cores: silos are waited for

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow -n 3 --dist worksteal

test-hosted: $(STAMP)
	$(BIN)/python -m pytest -m hosted

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  # the site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m studies.performance

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
