# Everything a checkout needs; each target first sets up what is missing (see tools/setup).
#
#   make demo      train a small model on a simulated mesh and show what moved
#   make test      build everything, run every test
#   make nightly   convolutions at their full sizes and 100,000 random programs with fresh seeds (INTARSIA_PROGRAMS=n); up to 10 GB of memory
#   make bench     print the comparison tables
#   make python    build the Python package into build/python (PYTHONPATH=build/python)
#   make asan      the simulated tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make tsan      the simulated tests, with threads as ranks, under ThreadSanitizer
#   make build     build everything
#   make format    format the sources (needs clang-format)
#   make tidy      run clang-tidy's short list on the library (needs clang-tidy)
#   make clean     remove what was built; .venv stays
#
# JOBS=n limits how many compilers and tests run at once. CMAKE_PREFIX_PATH may name a LibTorch 2.13.

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
DEMO := $(basename $(notdir $(firstword $(wildcard examples/2_*.cpp))))
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export NINJA_STATUS = [%p, %f of %t, %e s]$(SPACE)
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)

# Says how long a build takes, where it starts from nothing. Minutes on 2 cores.
first_build = @[ -e build/build.ninja ] || echo "The first build takes up to $(1) minutes on 2 cores; later ones only what has changed."

.PHONY: demo test nightly bench python asan tsan build setup setup-tests format tidy clean
.DEFAULT_GOAL := build

setup:
	@tools/setup

setup-tests:
	@tools/setup tests

build: setup
	$(call first_build,30)
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS)

demo: setup
	@[ -n "$(DEMO)" ] || { echo "there is no examples/2_*.cpp to show"; exit 1; }
	$(call first_build,9)
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS) --target example_$(DEMO)
	build/examples/$(DEMO)

test: setup-tests
	$(call first_build,30)
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS)
	ctest --preset dev --parallel $(JOBS) || { tools/failures; exit 1; }

nightly: setup-tests
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS) --target intarsia_tests intarsia_process_tests intarsia_cli
	tools/nightly

bench: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS) --target benchmarks intarsia_python
	@set -e; for source in $(sort $(wildcard benchmarks/*.cpp)); do build/$${source%.cpp}; done
	PYTHONPATH=build/python .venv/bin/python benchmarks/7_python.py

python: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS) --target intarsia_python

asan: setup-tests
	cmake --preset asan
	cmake --build --preset asan --parallel $(JOBS)
	ctest --preset asan --parallel $(JOBS)

tsan: setup-tests
	cmake --preset tsan
	cmake --build --preset tsan --parallel $(JOBS)
	ctest --preset tsan --parallel $(JOBS)

format:
	@command -v clang-format >/dev/null || { echo "please run:  sudo apt-get install clang-format"; exit 1; }
	git ls-files '*.h' '*.cpp' | xargs clang-format -i

tidy: setup
	@command -v clang-tidy >/dev/null || { echo "please run:  sudo apt-get install clang-tidy"; exit 1; }
	cmake --preset dev
	git ls-files 'intarsia/*.cpp' | xargs clang-tidy --quiet -p build \
	  --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-gch

clean:
	rm -rf build build-edit build-release build-asan build-tsan
