# What a developer runs. Every target sets up what it needs, inside .env/ (see tools/setup_env.py); nothing is installed elsewhere.
PYTHON ?= python3
ARGS ?=
DEMO ?= tools/demo.py
PERSON ?=

# Compiled code is kept: the tests start thousands of Pythons, and each of them would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo demo-oauth test test-all test-newest lint format docs soak bench compare conformance setup clean check-python

SETUP = $(PYTHON) tools/setup_env.py
# The environment of the Python that PYTHON names, for example .env/py311
VENV = .env/py$(shell $(PYTHON) -c 'import sys; print("%d%d" % sys.version_info[:2])')
PYTEST = $(VENV)/bin/python -m pytest
# Most tests wait most of their time, for a bound to pass or a process to end: some run side by side. TOGETHER= runs
# them one after another.
TOGETHER = -n 4 --dist worksteal

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo "  PYTHON=python3.12 chooses the Python, ARGS='-k name' goes to pytest."

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: '$(PYTHON)' is missing or older than Python 3.11; say which one to use: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }

setup: check-python ## build everything the tests need (all Python tools, all third-party servers)
	@$(SETUP) test

demo: check-python ## see it work: five real servers held by one host
	@$(SETUP) demo
	@test -f $(DEMO) || { echo "make: $(DEMO) is not in this checkout, so there is no demo to run" >&2; exit 1; }
	@$(VENV)/bin/python $(DEMO)

demo-oauth: check-python ## a server behind a login, from `moor test` to `moor logout`; PERSON=me: it is you who logs in
	@$(SETUP) demo-oauth
	@$(VENV)/bin/python tools/demo_oauth.py "$(PERSON)"

test: check-python ## the test suite on this Python
	@$(SETUP) test
	@$(PYTEST) -m "not soak" $(TOGETHER) $(ARGS)

test-all: check-python ## the test suite on every supported Python found here
	@$(SETUP) test
	@found=$$($(SETUP) pythons) && echo "make: testing on" $$found && \
	for v in 3.11 3.12 3.13; do case "$$found" in *"$$v="*) ;; *) echo "make: Python $$v is not on this machine, so it is not tested" ;; esac; done; \
	for each in $$found; do \
	  v=$${each%%=*}; python=$${each#*=}; \
	  "$$python" tools/setup_env.py dev && echo "make: Python $$v" && \
	  .env/py$$(echo $$v | tr -d .)/bin/python -m pytest -m "not soak" $(TOGETHER) $(ARGS) || exit 1; \
	done

test-newest: check-python ## the smoke set on the newest supported Python found here
	@newest=$$($(SETUP) pythons | tail -n 1); v=$${newest%%=*}; python=$${newest#*=}; \
	if [ -z "$$v" ] || [ "$$v" = "$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')" ]; then \
	  echo "make: no newer supported Python than $(PYTHON) on this machine; nothing more to test"; exit 0; fi; \
	echo "make: smoke tests on Python $$v"; "$$python" tools/setup_env.py dev && \
	.env/py$$(echo $$v | tr -d .)/bin/python -m pytest -m "smoke and not soak" $(TOGETHER) $(ARGS)

lint: check-python ## ruff, and mypy as on Linux, macOS and Windows
	@$(SETUP) dev
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@for system in darwin win32; do \
	  $(VENV)/bin/mypy --platform $$system --cache-dir .env/mypy/$$system src || exit 1; \
	done

format: check-python ## let ruff lay out the code and mend what it can
	@$(SETUP) dev
	@$(VENV)/bin/ruff check --fix-only --quiet .
	@$(VENV)/bin/ruff format .

docs: check-python ## write the parts of the docs that are made from the code
	@$(SETUP) dev
	@$(VENV)/bin/python tools/docs.py

soak: check-python ## the tests that run for minutes
	@$(SETUP) test
	@$(PYTEST) -m soak --timeout=3600 $(ARGS) || { code=$$?; \
	  [ $$code -ne 5 ] || echo "make: no test is marked 'soak' yet" >&2; exit $$code; }

compare: check-python ## the same scripted servers under us and other clients; ROWS='P5 P9' runs some
	@$(SETUP) compare
	@$(VENV)/bin/python compare/run.py $(ROWS)

conformance: check-python ## the MCP conformance suite: ours beside the official SDK, written into the docs; ARGS='--only NAME'
	@$(SETUP) test
	@$(VENV)/bin/python tests/conformance/run.py $(ARGS)

bench: check-python ## speed and memory against the bare floor and other clients; ARGS='--full --cases call,rate'
	@$(SETUP) bench
	@.env/bench/bin/python bench/run.py $(ARGS)

clean: ## remove .env/ and caches
	@rm -rf .env .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
