# `make help` lists what there is. All set-up is in scripts/setup; the stamps in .venv remember what
# of it is done.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv/bin
JOBS ?= $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

WHEEL_SOURCES := $(shell find CMakeLists.txt pyproject.toml README.md \
  bindings cmake include kernels python src tools -type f -not -name '*.pyc')
CPP_FILES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
TEST_RUN ?=

.PHONY: help demo test test-cpp test-python bench wheel format check clean

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

demo: .venv/.demo ## FP8 on a real model, start to end: table, JSON, chart
	$(VENV)/octofold demo

test: test-cpp test-python ## C++ tests, then the Python tests against the installed wheel

test-cpp: .venv/.build ## C++ tests (PRESET=dev, asan, ubsan, tsan; release by default)
	scripts/test_cpp $(or $(PRESET),release)

test-python: .venv/.test test-cpp ## Python tests, the wheel in a clean venv, the examples
	$(VENV)/python -m pytest tests/python tests/project

bench: .venv/.demo ## speed of the FP8 GEMM on this machine
	$(VENV)/octofold bench gemm --suite square

wheel: .venv/.wheel ## dist/octofold-*.whl
	@ls dist/octofold-*.whl

format: .venv/.check ## formats C++ and Python
	$(VENV)/clang-format -i $(CPP_FILES)
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .

check: .venv/.check ## formatting, lint, include rules, generated files, types
	scripts/check

clean: ## removes all that was built; .venv too
	rm -rf build dist .venv

.venv/.build: scripts/setup
	scripts/setup build
	@touch $@

.venv/.wheel: .venv/.build $(WHEEL_SOURCES)
	scripts/setup wheel
	@touch $@

.venv/.demo .venv/.test: .venv/.%: .venv/.wheel
	scripts/setup $*
	@touch $@

.venv/.check: .venv/.test scripts/check_requirements.txt
	scripts/setup check
	@touch $@
