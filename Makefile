# Two commands for a newcomer: `make demo` and `make test`. Everything lands in $(VENV); nothing else is touched.
VENV ?= .venv
# The first Python >= 3.11 that really runs (a version manager's shim may exist and not work).
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
BIN := $(VENV)/bin
# With the coverage and its floor: make test COVERAGE=--cov
COVERAGE ?=
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check format live docs bench clean

demo: $(VENV)/.installed
	$(BIN)/sglang-model demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses auto $(COVERAGE)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Needs SGLang's own server: SGLANG_LIVE_URLS names it, SGLANG_LIVE_TOKENIZER its tokenizer; see docs/verification.md.
live: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/live -m live

docs: $(VENV)/.installed
	$(BIN)/python -m sglang_model.config_reference > docs/configuration.md
	$(BIN)/python -m sglang_model.splice_report --into docs/transports.md
	@test -z "$$SGLANG_GYM_TEST_DATA" || \
		$(BIN)/python -m sglang_model.splice_report "$$SGLANG_GYM_TEST_DATA/chat_templates" --into docs/transports.md

# Some 20 minutes on an idle machine; rewrites docs/performance.md. A smoke run: make bench ARGS=--quick
# NEMO_GYM_HOME names nemo-gym's environment (one is made if unset), BENCH_TOKENIZER a tokenizer's folder.
bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "This project needs Python 3.11 or newer: make demo PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable ".[generate]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@
