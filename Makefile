# Every target makes the virtual environment that it needs; CI runs exactly these.
PYTHON ?= python3
# Each interpreter has an environment of its own: make demo PYTHON=python3.13
VENV := .venv$(patsubst python3%,%,$(filter-out python3,$(notdir $(PYTHON))))
BIN = $(VENV)/bin
READY := $(VENV)/.ready

# Tests often wait, so use twice as many processes as a machine of two cores has.
PARALLEL := -n 4 --dist worksteal
# Keep what pytest compiles, for its other workers.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup web machine demo quick test test-agents versions lowest check house hooks fix bench chaos docs \
	api constraints wheel image test-image docs-site clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e . --group dev
	touch $@

# Build the page into web/dist, from which the daemon of a checkout serves it.
web: setup
	$(BIN)/python web/build.py

# ARGS=--keep keeps its daemon running, and prints the address of the page.
demo: setup
	$(BIN)/kapelle demo $(ARGS)

# Unit tests, which start no daemon; under a minute.
quick: setup
	$(BIN)/pytest $(PARALLEL) tests/unit $(ARGS)

# Get what tests need on the machine: the built page, Debian's Chromium and podman.
machine: setup
	$(BIN)/python -m tests.machine

# Everything that must hold after every change, with real processes, git and both databases.
# A failed test is run once more, alone; the last lines name those that pass then as UNSTEADY.
test: setup machine
	$(BIN)/python -m tests.retry $(PARALLEL) --durations=30 -- $(ARGS)

# The real agents, at pinned versions, against a scripted model; missing ones are skipped.
test-agents: setup
	-$(BIN)/python -m tests.agents.install
	$(BIN)/pytest tests/agents/real --timeout=600 -v $(ARGS)

INTERPRETERS := python3.11 python3.12 python3.13 python3.14

versions:
	@for python in $(INTERPRETERS); do \
		if $$python -c "" 2> /dev/null; then $(MAKE) quick demo PYTHON=$$python || exit 1; \
		else echo "$$python is not installed: skipped."; fi; done

# Tests and demo with the oldest dependencies that pyproject.toml allows.
lowest: VENV := .venv.lowest
lowest:
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --resolution lowest-direct -e . --group dev
	$(BIN)/pytest $(PARALLEL) tests/unit
	$(BIN)/kapelle demo

# Measure the readability of the source by package; ARGS="engine cli" lists the places.
house: setup
	$(BIN)/python tests/house.py $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/typos
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python web/build.py check

# Install the git hooks: quick checks before each commit, and a check of its message.
hooks: setup
	$(BIN)/pre-commit install --hook-type pre-commit --hook-type commit-msg

fix: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python web/build.py fix

bench: setup
	$(BIN)/python -m bench

# Everything that takes long: storms of kills, and all tests of which `make test` runs a sample.
chaos: setup machine
	$(BIN)/python -m tests.chaos
	$(BIN)/pytest $(PARALLEL) --exhaustive -m sampled $(ARGS)

# Write the documents that are generated from the code; tests compare them.
docs: setup
	$(BIN)/python -m docs.generate

# Accept the present public API; a test compares it with the stored list.
api: setup
	$(BIN)/python -m tests.public_api

# Store the versions in the virtual environment as those that `make setup` installs.
constraints:
	$(BIN)/pip freeze --exclude-editable > constraints.txt

# Build the source distribution and, from it, the wheel.
wheel: setup
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist

# Build the container image of that wheel: make image ENGINE=podman BASE=ubuntu:26.04 TAG=kapelle:1 UID=$$(id -u)
ENGINE ?= docker
BASE ?= debian:trixie-slim
TAG ?= kapelle:latest
UID ?= 1000
image: wheel
	$(ENGINE) build --build-arg BASE=$(BASE) --build-arg UID=$(UID) --tag $(TAG) $(ARGS) .

# Test that image.
test-image: image
	KAPELLE_IMAGE=$(TAG) KAPELLE_ENGINE=$(ENGINE) $(BIN)/pytest tests/e2e/test_image.py

# Build the documentation site into site/; SERVE=1 serves it and follows changes.
docs-site: .venv.site/.ready
	.venv.site/bin/python -m mkdocs $(if $(SERVE),serve,build --strict)

.venv.site/.ready: pyproject.toml
	$(PYTHON) -m venv .venv.site
	.venv.site/bin/pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	.venv.site/bin/pip install --quiet --disable-pip-version-check --group site
	touch $@

clean:
	rm -rf dist site web/dist web/node_modules web/src/api/schema.ts
	rm -rf .venv .venv.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
