# Every target makes the virtual environment it needs; CI runs exactly these.
PYTHON ?= python3
# Another interpreter has an environment of its own: make demo PYTHON=python3.13
VENV := .venv$(patsubst python3%,%,$(filter-out python3,$(notdir $(PYTHON))))
BIN = $(VENV)/bin
READY := $(VENV)/.ready

# Much of what tests do is waiting: twice as many processes as a machine of two cores has.
PARALLEL := -n 4 --dist worksteal
# What pytest compiles is kept for its other workers.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup web machine demo quick test test-agents versions lowest check house hooks fix bench chaos docs \
	api constraints wheel image test-image docs-site clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e . --group dev
	touch $@

# The page, into web/dist, from which the daemon of a checkout serves it.
web: setup
	$(BIN)/python web/build.py

# ARGS=--keep leaves its daemon running, and tells the page's address.
demo: setup
	$(BIN)/kapelle demo $(ARGS)

# What starts no daemon; under a minute.
quick: setup
	$(BIN)/pytest $(PARALLEL) tests/unit $(ARGS)

# What tests need of the machine: the built page, Debian's Chromium and podman.
machine: setup
	$(BIN)/python -m tests.machine

# Everything that is to hold after every change, with real processes, git and both databases.
# What fails among the others is tried once more, alone: a test that passes then is unsteady and to be mended.
test: setup machine
	$(BIN)/pytest $(PARALLEL) --durations=30 $(ARGS) || { echo "UNSTEADY, unless it fails again:"; \
		$(BIN)/pytest --last-failed --last-failed-no-failures none -x -n 0 $(ARGS); }

# The real agents, at pinned versions, against a scripted model; one that cannot be had is skipped.
test-agents: setup
	-$(BIN)/python -m tests.agents.install
	$(BIN)/pytest tests/agents/real --timeout=600 -v $(ARGS)

INTERPRETERS := python3.11 python3.12 python3.13 python3.14

versions:
	@for python in $(INTERPRETERS); do \
		if $$python -c "" 2> /dev/null; then $(MAKE) quick demo PYTHON=$$python || exit 1; \
		else echo "$$python is not to be had here: not tried."; fi; done

# The oldest versions that pyproject.toml allows.
lowest: VENV := .venv.lowest
lowest:
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --resolution lowest-direct -e . --group dev
	$(BIN)/pytest $(PARALLEL) tests/unit
	$(BIN)/kapelle demo

# How the source reads: densities, names and docstrings by package; ARGS="engine cli" lists the places.
house: setup
	$(BIN)/python tests/house.py $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/typos
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python web/build.py check

# Have git run the quick checks before each commit, and look at its message.
hooks: setup
	$(BIN)/pre-commit install --hook-type pre-commit --hook-type commit-msg

fix: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python web/build.py fix

bench: setup
	$(BIN)/python -m bench

# Everything that takes long: the storms, and all that `make test` tries a sample of.
chaos: setup machine
	$(BIN)/python -m tests.chaos
	$(BIN)/pytest $(PARALLEL) --exhaustive -m sampled $(ARGS)

# The documents that are generated from the code and compared with it by tests.
docs: setup
	$(BIN)/python -m docs.generate

# Accept the public API as it is now; a test compares it with what is stored.
api: setup
	$(BIN)/python -m tests.public_api

# The exact versions that `make setup` installs, from what is in the virtual environment now.
constraints:
	$(BIN)/pip freeze --exclude-editable > constraints.txt

# The source distribution and, built from it, the wheel: as they are published.
wheel: setup
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist

# The container image of that wheel: make image ENGINE=podman BASE=ubuntu:26.04 TAG=kapelle:1 UID=$$(id -u)
ENGINE ?= docker
BASE ?= debian:trixie-slim
TAG ?= kapelle:latest
UID ?= 1000
image: wheel
	$(ENGINE) build --build-arg BASE=$(BASE) --build-arg UID=$(UID) --tag $(TAG) $(ARGS) .

# Use that image as a new user would.
test-image: image
	KAPELLE_IMAGE=$(TAG) KAPELLE_ENGINE=$(ENGINE) $(BIN)/pytest tests/e2e/test_image.py

# The documentation as a site, into site/; SERVE=1 shows it and follows changes.
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
