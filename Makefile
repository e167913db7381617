# `make help` lists what there is. All set-up is in scripts/setup; the stamps in .venv remember what
# of it is done.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv/bin
PRESET ?= release
FUZZ_SECONDS ?= 600
# Which of the preset's tests run: a test preset (release: all, quick: without the exhaustive ones).
CTEST_PRESET ?= $(if $(filter release,$(PRESET)),quick,$(PRESET))
# A worker for each core: threads of torch's on top of them would halve the speed.
PYTEST = OMP_NUM_THREADS=1 $(VENV)/python -m pytest -n $(CTEST_PARALLEL_LEVEL) --dist loadfile
SPHINX = $(VENV)/python -m sphinx --quiet --fail-on-warning --conf-dir docs
TIMES = $(CURDIR)/build/times
NVRTC = $(CURDIR)/.venv/lib/python3*/site-packages/nvidia/cu*/lib/libnvrtc.so.*[0-9]
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export CTEST_PARALLEL_LEVEL ?= $(CMAKE_BUILD_PARALLEL_LEVEL)
# ccache sees paths from inside the build folder, so that checkouts share what they compile alike; and
# it takes precompiled headers.
export CXX
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
export CCACHE_SLOPPINESS ?= pch_defines,time_macros

WHEEL ?= dist/octofold-*.whl
WHEEL_SOURCES = $(shell find CMakeLists.txt pyproject.toml README.md LICENSE NOTICE \
  bindings cmake include kernels python src tools -type f -not -name '*.pyc')
# By find: git lists nothing in a folder that is not its own (a tarball, another user's).
CPP_FILES = $(shell find bench bindings cmake examples include kernels src tests \
  -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: help demo test test-all test-cpp test-python test-project test-elsewhere all-cpp all-python all-asan all-tsan all-fuzz unsanitized \
  docs docs-links times bench wheel release release-dry-run test-matrix test-integrations gpu-bundle \
  format check tidy clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 24

demo: .venv/.demo ## FP8 in every linear layer of a real model: table, JSON, chart
	$(VENV)/octofold demo

test: .venv/.wheel test-cpp test-python times ## the quick tests: each operation, format and refusal

TEST_ALL = check docs all-cpp all-python test-elsewhere all-asan all-tsan all-fuzz test-matrix \
  release-dry-run test-integrations
test-all: $(TEST_ALL) times ## all tests: each kernel, sanitizers, wheels, hosts; some hours
	@echo "test-all ran: $(TEST_ALL)"

test-cpp: .venv/.build ## the quick C++ tests (PRESET=dev, asan, tsan: all in such a build)
	cmake --preset $(PRESET)
	cmake --build --preset $(or $(BUILD_PRESET),$(PRESET))
	@mkdir -p $(TIMES)
	nvrtc=$$(ls -d $(NVRTC)); OCTOFOLD_NVRTC=$$nvrtc \
	  ctest --preset $(CTEST_PRESET) --output-junit $(TIMES)/$(CTEST_PRESET).xml

test-python: .venv/.test ## the quick Python tests, with the wheel; the C++ package; the examples
	$(PYTEST) tests/python tests/project -m "not slow" --hypothesis-profile=quick \
	  --junitxml $(TIMES)/python.xml

test-project: .venv/.test ## of these, those of the wheel, the C++ package, scripts and examples
	$(PYTEST) tests/project -m "not slow" --junitxml $(TIMES)/python.xml

# No git, no HOME to write to, no rights of root, spaces and ü in paths, others' pytest plugins, of
# which one shuffles the tests.
test-elsewhere: ELSEWHERE = $(or $(TMPDIR),/tmp)/octofold ü 1
test-elsewhere: .venv/.test ## the quick Python tests in a copy at an odd place (TESTS= names some)
	rm -rf "$(ELSEWHERE)"
	mkdir -p "$(ELSEWHERE)"/{octofold,home,'tmp dir'}
	tar -c --exclude=./{build,dist,.git,.venv} . | tar -x -C "$(ELSEWHERE)/octofold"
	$(VENV)/python -m venv "$(ELSEWHERE)/venv"
	ls -d "$$PWD"/.venv/lib/python3*/site-packages >"$$(ls -d "$(ELSEWHERE)"/venv/lib/python3*/site-packages)/shared.pth"
	"$(ELSEWHERE)/venv/bin/python" -m pip install -q pytest-benchmark pytest-cov pytest-randomly
	chmod a-w "$(ELSEWHERE)/home"
	cd "$(ELSEWHERE)/octofold"; HOME="$(ELSEWHERE)/home" TMPDIR="$(ELSEWHERE)/tmp dir" \
	  OMP_NUM_THREADS=1 $(shell unshare -U true 2>/dev/null && echo unshare -U) ../venv/bin/python -m pytest \
	  -n $(CTEST_PARALLEL_LEVEL) --dist loadfile -m "not slow" \
	  --hypothesis-profile=quick $(addprefix --randomly-seed=,$(OCTOFOLD_TEST_SEED)) \
	  $(or $(TESTS),tests/python)
	chmod -R u+w "$(ELSEWHERE)" && rm -rf "$(ELSEWHERE)"

# What sanitizers leave out: a sample of all kernels, compiled, and the doors between rooms.
unsanitized: .venv/.wheel
	$(MAKE) test-cpp CTEST_PRESET=unsanitized BUILD_PRESET=unsanitized

all-cpp: .venv/.wheel
	$(MAKE) test-cpp CTEST_PRESET=release

all-python: .venv/.test
	$(PYTEST) tests/python tests/project --junitxml $(TIMES)/python.xml

all-tsan: .venv/.build
	$(MAKE) test-cpp PRESET=tsan

# And what Python's tests ask of the CPU, of a library under the sanitizers. There is no torch and no
# JAX for them there: in those everything takes long, and nothing is ours.
ASAN = build/asan/python
ASAN_TESTS = $(patsubst %,tests/python/test_%.py,activations arguments arrivals attention cast_many \
  cast_sources columns dot formats gated_gemm gemm gemm_cast gemm_weight_only group_casts \
  grouped_gemm grouped_gemm_weight_only refused_casts refused_products stacked_casts words)
all-asan: .venv/.test
	$(MAKE) test-cpp PRESET=asan
	cmake --preset asan -D OCTOFOLD_BUILD_PYTHON=ON -D Python_EXECUTABLE="$(CURDIR)/$(VENV)/python"
	cmake --build --preset asan --target octofold_ffi
	rm -rf $(ASAN)
	mkdir -p $(ASAN)
	cp -r python/octofold $(ASAN)
	cp build/asan/bindings/octofold_ffi.so $(ASAN)/octofold
	for name in torch jax; do echo 'raise ModuleNotFoundError(name=__name__)' >$(ASAN)/$$name.py; done
	preload=$$($(CXX) -print-file-name=libasan.so):$$($(CXX) -print-file-name=libubsan.so); \
	  LD_PRELOAD=$$preload ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 PYTHONPATH="$(CURDIR)/$(ASAN)" \
	  $(VENV)/python -m pytest -n $(CTEST_PARALLEL_LEVEL) --dist loadfile \
	  -m "not slow" --hypothesis-profile=quick --capture=sys $(ASAN_TESTS)

all-fuzz: .venv/.build
	cmake --preset asan
	cmake --build --preset asan
	OCTOFOLD_FUZZ_SECONDS=$(FUZZ_SECONDS) ctest --preset asan -R '[Ff]uzz'

times: ## how long each area of the tests took when it last ran
	@python3 scripts/test_times.py $(TIMES)

docs: .venv/.docs ## the documentation site in build/docs; runs the gallery's examples
	cmake --preset release >/dev/null
	cmake --build --preset release --target octofold
	$(SPHINX) -b html . build/docs

docs-links: .venv/.docs ## whether the links to other sites are alive (needs network)
	$(SPHINX) -b linkcheck . build/docs-links

bench: .venv/.demo ## speed on this machine, in C++ and from Python
	cmake --preset release
	cmake --build --preset release --target octofold_bench
	build/release/bench/octofold_bench
	$(VENV)/octofold bench gemm --suite square

wheel: .venv/.wheel ## dist/octofold-*.whl
	@ls dist/octofold-*.whl

release: .venv/.release ## dist/release: sdist, wheels for any Linux, checksums, SBOM; and the tag
	$(VENV)/python scripts/release.py

release-dry-run: .venv/.release ## the same without the tag (MACHINES=x86_64 for one wheel)
	$(VENV)/python scripts/release.py --dry-run $(MACHINES)

test-matrix: .venv/.wheel ## the wheel with the oldest and the newest of what it stands on
	$(VENV)/python scripts/test_matrix.py $(WHEEL) $(ENDS)

test-integrations: .venv/.wheel ## the plugs with the programs they plug into (HOSTS="vllm" for one, everyday)
	$(VENV)/python scripts/test_integrations.py $(WHEEL) $(HOSTS)

gpu-bundle: .venv/.wheel ## dist/gpu: all that the GPU suite needs, for a machine without network
	scripts/gpu_bundle

format: .venv/.check ## formats C++ and Python
	@$(VENV)/clang-format -i $(CPP_FILES)
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .

check: .venv/.check ## formatting, lint, include rules, generated files, types
	@$(VENV)/clang-format --dry-run --Werror $(CPP_FILES)
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/python scripts/check_includes.py
	$(VENV)/python scripts/check_imports.py
	$(VENV)/python scripts/check_words.py
	scripts/check_generated $(VENV)/python
	$(VENV)/mypy

tidy: .venv/.check ## clang-tidy (minutes)
	cmake --preset release
	find src -name '*.cpp' | \
	  xargs -P $(CMAKE_BUILD_PARALLEL_LEVEL) -n 1 $(VENV)/clang-tidy --quiet -p build/release

clean: ## removes what was built; .venv stays
	rm -rf build dist .venv/.wheel

.venv/.build: scripts/setup pyproject.toml
	scripts/setup build
	@touch $@

.venv/.wheel: .venv/.build $(WHEEL_SOURCES)
	scripts/setup wheel
	@touch $@

.venv/.demo .venv/.test .venv/.release: .venv/.%: .venv/.wheel
	scripts/setup $*
	@touch $@

.venv/.docs .venv/.check: .venv/.%: .venv/.test
	scripts/setup $*
	@touch $@
