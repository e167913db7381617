# `make help` lists what there is. All set-up is in scripts/setup; the stamps in .venv remember what
# of it is done.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv/bin
PRESET ?= release
# A worker for each core: threads of torch's on top of them would halve the speed.
PYTEST = OMP_NUM_THREADS=1 $(VENV)/python -m pytest -n $(CTEST_PARALLEL_LEVEL) --dist loadfile \
  tests/python tests/project
# Not empty: what fails runs once more, and both runs are shown.
RETRY ?=
NVRTC = $(CURDIR)/.venv/lib/python3*/site-packages/nvidia/cu*/lib/libnvrtc.so.*[0-9]
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export CTEST_PARALLEL_LEVEL ?= $(CMAKE_BUILD_PARALLEL_LEVEL)
# Build folders share what they compile alike, as the wheel's and the C++ tests' do: ccache then
# sees paths from inside the build folder, and the compiler under one name.
export CXX
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1

WHEEL_SOURCES = $(shell find CMakeLists.txt pyproject.toml README.md LICENSE NOTICE \
  bindings cmake include kernels python src tools -type f -not -name '*.pyc')
CPP_FILES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')

.PHONY: help demo test test-cpp test-python bench wheel gpu-bundle format check tidy clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

demo: .venv/.demo ## FP8 in every linear layer of a real model: table, JSON, chart
	$(VENV)/octofold demo

test: test-cpp test-python ## all tests (OCTOFOLD_TORCH=skip: without PyTorch)

test-cpp: .venv/.build ## the C++ tests (PRESET=dev, asan, tsan; else release)
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET)
	nvrtc=$$(ls -d $(NVRTC)); OCTOFOLD_NVRTC=$$nvrtc ctest --preset $(PRESET) $(if $(RETRY),--repeat until-pass:2)

test-python: .venv/.test ## the Python tests, with the wheel; the C++ package; the examples
	$(PYTEST) $(if $(RETRY),|| $(PYTEST) --last-failed --last-failed-no-failures none)

bench: .venv/.demo ## speed on this machine, in C++ and from Python
	cmake --preset bench
	cmake --build --preset bench
	build/bench/bench/octofold_bench
	$(VENV)/octofold bench gemm --suite square

wheel: .venv/.wheel ## dist/octofold-*.whl
	@ls dist/octofold-*.whl

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
	scripts/check_generated $(VENV)/python
	$(VENV)/mypy

tidy: .venv/.check ## clang-tidy (minutes)
	cmake --preset release
	git ls-files 'src/*.cpp' | \
	  xargs -P $(CMAKE_BUILD_PARALLEL_LEVEL) -n 1 $(VENV)/clang-tidy --quiet -p build/release

clean: ## removes what was built; .venv stays
	rm -rf build dist .venv/.wheel

.venv/.build: scripts/setup pyproject.toml
	scripts/setup build
	@touch $@

.venv/.wheel: .venv/.build $(WHEEL_SOURCES)
	scripts/setup wheel
	@touch $@

.venv/.demo .venv/.test: .venv/.%: .venv/.wheel
	scripts/setup $*
	@touch $@

.venv/.check: .venv/.test
	scripts/setup check
	@touch $@
