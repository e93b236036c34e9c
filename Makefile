# Relay. `make` alone lists the targets; each does the set-up it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
EXAMPLE ?= flights
WORKSPACE ?= .workspace/$(EXAMPLE)
BIN := .venv/bin
# Of container images; components/images.py has the same defaults.
REGISTRY ?= ghcr.io/relay-training
TAG ?= 0.1.0
IMAGES ?= launcher tensorflow tensorboard
BUILDER ?= $(firstword $(foreach name,buildah podman docker,$(shell command -v $(name))))
READY := .venv/.ready
# A test run must not depend on what the shell of the person exports.
export PYTHONNOUSERSITE := 1

.PHONY: help tools setup run test check test-faults test-cluster test-cluster-quick test-images submit status schedule unschedule test-kfp images sbom format lock compile benchmarks clean

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(READY) ## Make the environment .venv from the locks.

$(READY): requirements/dev.txt requirements/examples.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --no-build-isolation -r requirements/examples.txt
	touch $@

run: $(READY) ## Run the main job on real data, start to served model (EXAMPLE=flights|digits, WORKSPACE=DIR).
	$(BIN)/python -m pipelines.run_local --params examples/$(EXAMPLE)/params.yaml --workspace $(WORKSPACE)

tools: $(READY) ## Build the programs that tests use, where Go is installed.
	@command -v go > /dev/null || { echo "no Go here: tests of s3:// and of pod security will be skipped"; exit 0; }; \
	[ -x $(BIN)/versitygw ] || (cd tests/servers/versitygw && CGO_ENABLED=0 go build -mod=readonly -trimpath -o ../../../$(BIN)/versitygw github.com/versity/versitygw/cmd/versitygw); \
	[ -x $(BIN)/podsecurity ] || (cd tests/servers/podsecurity && CGO_ENABLED=0 go build -mod=readonly -trimpath -o ../../../$(BIN)/podsecurity .)

test: $(READY) tools ## Unit, integration and quick fault tests.
	$(BIN)/python -m pytest -m "not faults and not cluster and not kfp and not images"

test-faults: $(READY) ## The full fault matrix on real processes.
	$(BIN)/python -m pytest -m "faults"

test-cluster: $(READY) ## Tests against the cluster that KUBECONFIG names.
	$(BIN)/python -m pytest -m cluster

test-cluster-quick: $(READY) ## Of these, what runs on every change.
	$(BIN)/python -m pytest -m "cluster and quick"

test-images: $(READY) ## Tests of the built images, as pods on the cluster that KUBECONFIG names.
	$(BIN)/python -m pytest -m images

images: ## Build the container images (IMAGES, BUILDER, BASE_IMAGE, REGISTRY, TAG, REQUIREMENTS).
	@test -n "$(BUILDER)" || { echo "neither buildah nor podman nor docker is on the PATH"; exit 1; }
	for name in $(IMAGES); do \
	  $(BUILDER) build $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) \
	    $(if $(REQUIREMENTS),--build-arg REQUIREMENTS=$(REQUIREMENTS)) \
	    --build-arg CODE_VERSION=$$(git describe --always --dirty) \
	    --file images/$$name/Dockerfile --tag $(REGISTRY)/relay-$$name-python:$(TAG) .; \
	done

sbom: ## List what the images hold, as CycloneDX, in .workspace/sbom.
	$(PYTHON) -m venv .workspace/sbom/venv
	.workspace/sbom/venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/sbom.txt
	for name in launcher tensorflow tensorflow-gpu tensorboard; do \
	  .workspace/sbom/venv/bin/cyclonedx-py requirements requirements/$$name.txt -o .workspace/sbom/$$name.json; done

PIPELINE ?= train_and_export
SERVER = $(BIN)/python -m pipelines.server $(1) --pipeline $(PIPELINE) $(if $(PARAMS),--params $(PARAMS)) $(if $(NAME),--name $(NAME))

submit: $(READY) ## Create a run on KFP_ENDPOINT and follow it (PIPELINE, PARAMS, NAME).
	$(call SERVER,submit)

status: $(READY) ## Follow a run on KFP_ENDPOINT to its end (RUN; the newest without it).
	$(call SERVER,status) $(if $(RUN),--run $(RUN))

schedule: $(READY) ## Make a recurring run on KFP_ENDPOINT (PIPELINE, PARAMS, NAME, CRON="0 0 4 * * *").
	$(call SERVER,schedule) --cron "$(CRON)"

unschedule: $(READY) ## Delete a recurring run on KFP_ENDPOINT (PIPELINE, NAME).
	$(call SERVER,unschedule)

test-kfp: $(READY) ## Tests against the Kubeflow Pipelines server that KFP_ENDPOINT names.
	$(BIN)/python -m pytest -m kfp

check: $(READY) ## Format, lint, types, import rules, compiled YAML: the one gate before a commit.
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml > .import-linter.log 2>&1 || { cat .import-linter.log; exit 1; }
	$(BIN)/python -m pipelines.compile --check

format: $(READY) ## Format the code and mend what the linter can.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

compile: $(READY) ## Compile the pipelines to pipelines/compiled, for the UI's upload.
	$(BIN)/python -m pipelines.compile

lock: ## Resolve the locks in requirements/ again (needs uv).
	cd requirements && uv pip compile --quiet --generate-hashes --python-version 3.11 --no-header dev.in -o dev.txt
	cd requirements && for name in launcher relay tensorflow-gpu; do \
	  uv pip compile --quiet --generate-hashes --python-version 3.11 --no-header -c dev.txt $$name.in -o $${name/relay/tensorflow}.txt; done
	cd requirements && uv pip compile --quiet --generate-hashes --python-version 3.11 --no-header sbom.in -o sbom.txt
	cd requirements && uv pip compile --quiet --generate-hashes --python-version 3.11 --no-header -c dev.txt tensorboard.in -o tensorboard.txt
	cd requirements && uv pip compile --quiet --generate-hashes --no-deps --python-version 3.11 --no-header examples.in -o examples.txt

benchmarks: $(READY) ## Run every benchmark; each ends with one line of JSON.
	for file in benchmarks/[a-z]*.py; do $(BIN)/python -m benchmarks.$$(basename $$file .py); done

clean: ## Remove the environment, workspaces and caches.
	rm -rf .venv .workspace .mypy_cache .ruff_cache .pytest_cache .hypothesis .import-linter.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
