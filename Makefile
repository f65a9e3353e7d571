# Two commands: `make demo` trains on a real Kubernetes control plane, `make test` runs the linters and the tests.
# Both set up what they need: the locked Python environment, the control-plane binary and Helm (built once, cached).
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
# Many tests wait more than they compute. On two cores, two processes leave a seventh of the time idle, three almost none.
TEST_PROCESSES := -n 3 --dist loadscope --no-loadscope-reorder
# These only compute: one process for each core.
UNIT_PROCESSES := -n logical --dist loadscope --no-loadscope-reorder
export UV_PYTHON_DOWNLOADS := never
# Every test, pod and tool is a process of its own. Compiled bytecode saves each of them seconds.
export UV_COMPILE_BYTECODE := 1
export PYTHONUNBUFFERED := 1
.DEFAULT_GOAL := help
.SUFFIXES:

.PHONY: help
help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: environment
environment: ## install the locked Python environment
	@echo "==> Python environment from uv.lock"
	@uv=$$($(PYTHON) tools/uv.py) && $$uv sync --quiet --locked --python $(PYTHON)

.PHONY: setup
setup: environment ## install that, and build the control plane and Helm
	@echo "==> Kubernetes control plane and Helm (cached per user; the first build takes minutes)"
	@$(PY) -m localkube build --helm

.PHONY: demo
demo: setup ## train, preempt, crash, corrupt, kill the operator, compare bit for bit
	@echo "==> Demo"
	@$(PY) -m examples.demo $(DEMO_ARGS)

.PHONY: lint
lint: environment ## check formatting, lints, types, layers and generated files
	@echo "==> Lints, types, layers, generated files"
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports
	@$(PY) -m holdfast_contract.crd --check
	@$(PY) tools/chart_values.py --check

.PHONY: unit
unit: environment ## run the pure tests: seconds, no control plane
	@echo "==> Unit tests"
	@$(PY) -m pytest tests/unit -q $(UNIT_PROCESSES) $(PYTEST_ARGS)

.PHONY: test
test: lint setup ## run lint, then all tests but the slow ones, and print their coverage
	@echo "==> Tests"
	@$(PY) -m coverage erase
	@$(PY) -m coverage run -m pytest $(TEST_PROCESSES) $(PYTEST_ARGS)
	@echo "==> Coverage"
	@$(PY) tools/coverage_floors.py $(if $(findstring tests/,$(PYTEST_ARGS)),--no-floors)

.PHONY: test-all
test-all: ## the same, including the slow tests
	@$(MAKE) test PYTEST_ARGS='-m "slow or not slow" $(PYTEST_ARGS)'

.PHONY: shape
shape: ## print how long functions and modules are, how many parameters, how much is documented
	@$(PYTHON) tools/shape.py

.PHONY: wheel
wheel: ## build the wheel into dist/
	@uv=$$($(PYTHON) tools/uv.py) && $$uv build --quiet --wheel --python $(PYTHON)
	@ls dist/*.whl

.PHONY: generate
generate: ## write the CRD into crds/ and the chart, and the table of the chart's values
	@$(PY) -m holdfast_contract.crd
	@$(PY) tools/chart_values.py

.PHONY: format
format: ## format the sources and apply automatic lint fixes
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

.PHONY: clean
clean: ## remove what these commands created in this folder (the cache of binaries stays)
	rm -rf $(VENV) dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-output
