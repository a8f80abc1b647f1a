# Everything starts from a bare python3: the targets build .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

.PHONY: demo test lint format clean

demo: $(VENV)/.installed-demo
	$(BIN)/optdoctor demo

test: lint
	$(BIN)/pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy optdoctor

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist optdoctor-run .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps spare a second call the installation; a change of requirements renews it.
$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) ".[huggingface]"
	touch $@

# dev contains everything the demo needs.
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) ".[dev]"
	touch $(VENV)/.installed-demo $@

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)
