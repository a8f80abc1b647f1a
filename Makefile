# Everything starts from a bare python3: the targets build .venv and .venv-old themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
OLD := .venv-old
# Processes that share the tests, a file at a time; 0 runs them in one, as a debugger needs.
WORKERS ?= 2

.PHONY: demo test test-old lint format docs clean

demo: $(VENV)/.installed-demo
	$(BIN)/optdoctor demo

test: lint
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --durations 30 --durations-min 5

# What depends on a framework, with the oldest release of each that we support.
test-old: $(OLD)/.installed
	$(OLD)/bin/pytest tests/adapters tests/knowledge tests/test_bitwise_inert.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy optdoctor

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Pages of rules and channels, from their own sentences.
docs: $(VENV)/.installed-dev
	$(BIN)/python scripts/write_docs.py

clean:
	rm -rf $(VENV) $(OLD) build dist optdoctor-run .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps spare a second call the installation; a change of requirements renews it.
$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) ".[huggingface]"
	touch $@

# dev contains everything the demo needs.
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) ".[dev]"
	touch $(VENV)/.installed-demo $@

# Lightning 2.2 imports pkg_resources without asking for setuptools.
$(OLD)/.installed: pyproject.toml constraints-old.txt
	test -x $(OLD)/bin/pip || $(PYTHON) -m venv $(OLD)
	$(OLD)/bin/python -m pip install --quiet --constraint constraints-old.txt setuptools \
		--editable ".[test]"
	touch $@

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)
