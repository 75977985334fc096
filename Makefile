# `make help` lists what there is. Everything runs in .venv, which is made at first use.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
BENCH_INSTALLED := .venv/.bench-installed
RAY_INSTALLED := .venv/ray/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
SOURCES := pyproject.toml setup.py constraints.txt src/hotloop/capture/layout.py $(wildcard src/hotloop/*/*.c src/hotloop/measure/compiled/*.h src/hotloop/rl/collect/*.[ch])

.PHONY: help demo demo-cluster test short-tests test-long test-ray test-pythons test-gpu campaign lint docs bench bench-peers bench-sbx screenshots browser clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## train an agent, find the bottleneck, swap in a fast version, prove the speed-up (three minutes)
	$(BIN)/python examples/demo.py

demo-cluster: $(INSTALLED) ## the same on a Ray cluster of three local nodes (needs Ray: pip install 'hotloop[ray]'; two minutes)
	$(BIN)/python examples/demo_cluster.py

# Lint and types run beside the tests. Many tests wait, so three at once on two cores.
test: $(INSTALLED) $(RAY_INSTALLED) browser ## lint, types and all tests but the long ones
	$(MAKE) --no-print-directory -j2 lint short-tests

# Bytecode once, also where PYTHONDONTWRITEBYTECODE is set: every worker and each of hundreds of child processes would
# compile the sources again, and every worker would rewrite the assertions of all tests.
short-tests: $(INSTALLED) $(RAY_INSTALLED)
	$(BIN)/python -m compileall -q src
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -qq tests >/dev/null || true
	$(BIN)/python -m pytest -n 3 --durations 25 -m "not long" tests

test-long: $(INSTALLED) browser ## the tests that take minutes (about an hour on two cores)
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -n 2 --durations 25 -m long tests

test-ray: $(INSTALLED) ## every test on a real Ray cluster, RLlib included; installs both into .venv (fifteen minutes)
	$(PIP) -e '.[rllib]'
	$(BIN)/python -m pytest -n 1 --durations 25 tests/processes/test_ray.py tests/processes/test_run_ray.py tests/processes/test_lab_ray.py \
	    tests/processes/test_collect_ray.py tests/processes/test_train_ray.py tests/processes/test_run_rllib.py tests/processes/test_run_ray_train.py

MINUTES ?= 30
campaign: $(INSTALLED) ## try to break it: kills, signals, full disks ... (MINUTES=30 SEED=1 KINDS="..." COUNT="kill=1000")
	$(BIN)/python -m tests.campaign --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS)) \
	    $(if $(COUNT),--count $(COUNT))

lint: $(INSTALLED) docs ## ruff, mypy --strict and the links of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED) ## the documentation site, in build/site: open index.html there
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(BENCH_INSTALLED) ## what a region costs, next to other profilers (a minute)
	$(BIN)/python benchmarks/region_cost.py

bench-peers: $(INSTALLED) ## environments and trainers next to other libraries, in .venv-peers (half an hour)
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip --disable-pip-version-check install --quiet torch==2.13.0 \
	  jax==0.10.2 optax jumanji==1.1.2 envpool==1.2.5 gym==0.26.2 pettingzoo==1.27.0 shimmy==2.0.1 \
	  imageio==2.38.1 psutil rich rich-argparse
	$(BIN)/python benchmarks/programs/build_puffer.py .venv-peers
	$(BIN)/python benchmarks/envs.py --peers-python .venv-peers/bin/python
	$(BIN)/python benchmarks/trainers.py ppo --peers-python .venv-peers/bin/python
	$(BIN)/python benchmarks/trainers.py dqn --peers-python .venv-peers/bin/python

bench-sbx: $(INSTALLED) ## boosted Stable-Baselines3 next to SBX, in .venv-sbx (twenty minutes)
	test -x .venv-sbx/bin/python || $(PYTHON) -m venv .venv-sbx
	.venv-sbx/bin/python -m pip --disable-pip-version-check install --quiet sbx-rl==0.28 stable-baselines3==2.9.2
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/boost.py --what sbx --rounds 3 --sbx-python .venv-sbx/bin/python

screenshots: $(INSTALLED) browser ## the pictures in docs/images, from real runs (four minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.browser.screenshots
	$(BIN)/python -m tests.browser.recording

# The base tests need numpy, scipy, rich, tyro, psutil and pytest only; each interpreter gets a venv of its own.
PYTHONS ?= 3.11 3.12 3.13 3.14
BASE_TESTS := tests/unit/test_regions.py tests/unit/test_reader.py tests/unit/test_export.py tests/unit/test_report_html.py \
  tests/unit/test_report_verb.py tests/unit/test_show.py tests/unit/test_verdict.py tests/unit/test_line_samples.py tests/unit/test_expressions.py \
  tests/unit/test_call_path.py tests/unit/test_call_counters.py
test-pythons: ## the base tests with every Python that is there (PYTHONS="3.12 3.13"), without torch
	@for version in $(PYTHONS); do \
	  python=$$(ls -d $$HOME/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -1); \
	  python=$${python:-$$(command -v python$$version)}; \
	  if [ -z "$$python" ]; then echo "Python $$version: not here, left out"; continue; fi; \
	  echo "Python $$version: $$python"; \
	  "$$python" -m venv .venv-$$version && .venv-$$version/bin/python -m pip --disable-pip-version-check install --quiet \
	    -e . pytest pytest-xdist hypothesis matplotlib || exit 1; \
	  .venv-$$version/bin/python -m pytest -q -m "not long" $(BASE_TESTS) || exit 1; \
	done

test-gpu: $(INSTALLED) ## the tests that need a GPU, where torch finds one (docs/devices.md)
	@if $(BIN)/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; \
	then $(BIN)/python -m pytest tests/gpu; \
	else echo "torch finds no GPU here, so no device test was run"; fi

browser: ## Debian's chromium for the browser tests, when we are root
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium >/dev/null; } || \
	  echo "no chromium and no right to install it: the browser tests will be skipped"

clean: ## remove what was built and installed
	rm -rf .venv .venv-peers .venv-3.* build src/*.egg-info src/hotloop/measure/*.so src/hotloop/rl/collect/*.so src/hotloop/measure/layout.h

$(INSTALLED): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	touch $@

# Apart from the other packages, which bring what Ray needs: TorchRL would import it in every process.
$(RAY_INSTALLED): $(INSTALLED)
	mkdir -p $(@D)
	test -d $(@D)/ray || $(PIP) --no-deps --no-compile --target $(@D) ray msgpack || \
	  echo "Ray cannot be installed: its tests will be skipped"
	touch $@

$(BENCH_INSTALLED): $(INSTALLED)
	$(PIP) -e '.[bench]'
	touch $@
