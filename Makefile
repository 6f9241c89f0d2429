# Everything a checkout needs; each target first sets up what is missing (see tools/setup).
#
#   make demo      train a small model on a simulated mesh and show what moved
#   make check FOLDER=ops/norms   after an edit: build the simulated tests, run those of one folder
#   make test      build, and run every test body at least once; ends with the ten slowest tests and compile units
#   make test-all  the same and the whole matrix: all tests over 2 to 5 processes and every engine; builds the benchmarks
#   make nightly   convolutions at their full sizes and 100,000 random programs with fresh seeds (INTARSIA_PROGRAMS=n); up to 10 GB of memory
#   make bench     print the comparison tables
#   make python    build the Python package into build/python (PYTHONPATH=build/python)
#   make package   write a wheel and an archive into dist/: library, headers, CMake package, command line, Python package
#   make asan      the simulated tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make tsan      the simulated tests, with threads as ranks, under ThreadSanitizer
#   make build     build everything
#   make lint      clang-format, line lengths, ruff, mypy, spelling: lines `file:line: what`; under a minute
#   make format    format the C++ sources
#   make tidy      run clang-tidy's short list on the library (needs clang-tidy)
#   make clean     remove what was built; .venv stays
#
# JOBS=n limits how many compilers and tests run at once. CMAKE_PREFIX_PATH may name a LibTorch. TORCH=2.15.0 takes that
# PyTorch from PyPI, in .venv-2.15.0 and build-2.15.0: make test TORCH=2.15.0.

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
EXAMPLE ?= 2_train_an_mlp
TORCH ?= 2.13.0
export TORCH
# Of the folders .venv and build*; the presets and the tools read it.
export INTARSIA_SUFFIX := $(if $(filter 2.13.0,$(TORCH)),,-$(TORCH))
VENV := .venv$(INTARSIA_SUFFIX)
BUILD := build$(INTARSIA_SUFFIX)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# Says how long a build takes, where it starts from nothing. Minutes on 2 cores.
first_build = @[ -e $(BUILD)/build.ninja ] || echo "The first build takes about $(1) minutes on 2 cores; later ones only what has changed."

.PHONY: demo check test test-all package nightly bench python asan tsan build setup setup-tests setup-lint lint format tidy clean
.DEFAULT_GOAL := build

setup:
	@tools/setup

setup-tests:
	@tools/setup tests

setup-lint:
	@tools/setup lint

build: setup
	$(call first_build,15)
	@cmake --preset dev > /dev/null
	@tools/build $(JOBS)

demo: setup
	@[ -e examples/$(EXAMPLE).cpp ] || { echo "there is no examples/$(EXAMPLE).cpp. There are:" $(basename $(notdir $(wildcard examples/*.cpp))); exit 1; }
	$(call first_build,4)
	@cmake --preset dev > /dev/null
	@tools/build $(JOBS) example_$(EXAMPLE)
	$(BUILD)/examples/$(EXAMPLE)
	@printf '\nTo go on:\n  %s\n  %s\n  %s\n' \
	  "make demo EXAMPLE=4_llama             another example of examples/" \
	  "cat examples/0_first_program.cpp      a first program of your own; README.md says how to build it" \
	  "make test                             builds everything and runs every test"

check: setup-tests
	@[ -e $(BUILD)/build.ninja ] || cmake --preset dev
	@tools/check $(FOLDER)

test: setup-tests
	$(call first_build,15)
	@cmake --preset dev > /dev/null
	@tools/build $(JOBS)
	ctest --preset dev --parallel $(JOBS) || { tools/failures; exit 1; }
	@tools/slowest

test-all: setup-tests
	@cmake --preset dev > /dev/null
	@tools/build $(JOBS) all benchmarks
	ctest --preset all --parallel $(JOBS) || { tools/failures; exit 1; }
	@tools/slowest

nightly: setup-tests
	@cmake --preset dev > /dev/null
	@tools/build $(JOBS) intarsia_tests intarsia_process_tests intarsia_cli
	tools/nightly

bench: setup
	@cmake --preset dev > /dev/null
	@tools/build $(JOBS) benchmarks intarsia_python
	@set -e; for source in $(sort $(wildcard benchmarks/*.cpp)); do $(BUILD)/$${source%.cpp}; done
	PYTHONPATH=$(BUILD)/python $(VENV)/bin/python benchmarks/7_python.py

python: setup
	@cmake --preset dev > /dev/null
	@tools/build $(JOBS) intarsia_python

package: setup-tests
	@cmake --preset package > /dev/null
	cmake --build --preset package --parallel $(JOBS)
	$(VENV)/bin/python tools/package build-package$(INTARSIA_SUFFIX) dist

asan: setup-tests
	cmake --preset asan
	cmake --build --preset asan --parallel $(JOBS)
	ctest --preset asan --parallel $(JOBS)

tsan: setup-tests
	cmake --preset tsan
	cmake --build --preset tsan --parallel $(JOBS)
	ctest --preset tsan --parallel $(JOBS)

lint: setup-lint
	@tools/lint

format: setup-lint
	@tools/lint --format

tidy: setup
	@command -v clang-tidy >/dev/null || { echo "please run:  sudo apt-get install clang-tidy"; exit 1; }
	@cmake --preset dev > /dev/null
	git ls-files 'intarsia/*.cpp' | xargs clang-tidy --quiet -p $(BUILD) \
	  --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-gch

clean:
	rm -rf build build-* dist
