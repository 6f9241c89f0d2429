# Everything a checkout needs; each target first sets up what is missing (see tools/setup).
#
#   make demo      train a small model on a simulated mesh and show what moved
#   make test      build everything, run every test
#   make bench     print the comparison tables
#   make asan      the simulated tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make build     build everything
#   make format    format the sources (needs clang-format)
#   make clean     remove what was built; .venv stays
#
# JOBS=n limits how many compilers and tests run at once. CMAKE_PREFIX_PATH may name a LibTorch 2.13.

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
DEMO := $(basename $(notdir $(firstword $(wildcard examples/2_*.cpp))))
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: demo test bench asan build setup setup-tests format clean
.DEFAULT_GOAL := build

setup:
	@tools/setup

setup-tests:
	@tools/setup tests

build: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS)

demo: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS) --target example_$(DEMO)
	build/examples/$(DEMO)

test: setup-tests
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS)
	ctest --preset dev --parallel $(JOBS)

bench: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS) --target benchmarks
	@set -e; for source in $(sort $(wildcard benchmarks/*.cpp)); do build/$${source%.cpp}; done

asan: setup-tests
	cmake --preset asan
	cmake --build --preset asan --parallel $(JOBS)
	ctest --preset asan --parallel $(JOBS)

format:
	@command -v clang-format >/dev/null || { echo "please install clang-format:  sudo apt-get install clang-format"; exit 1; }
	git ls-files '*.h' '*.cpp' | xargs clang-format -i

clean:
	rm -rf build build-release build-asan build-tsan
