# Gives the target intarsia::libtorch, LibTorch's folder as INTARSIA_TORCH_ROOT and its version as INTARSIA_TORCH_VERSION.
# Used by our own build and, installed beside IntarsiaConfig.cmake, by the projects that use us. LibTorch is the one that
# the project around us has found, else it is searched where CMAKE_PREFIX_PATH says, then in INTARSIA_TORCH_HINTS.
#
# INTARSIA_BUILT_FOR, if it is set, is the version that Intarsia was built for: LibTorch keeps its C++ interface only
# within a minor version.

set(INTARSIA_TRIED_VERSIONS 2.13 2.14 2.15)

if(TARGET intarsia::libtorch)
  return()
endif()

# find_path tries <prefix>/include/<suffix> for each prefix.
if(TARGET torch)
  set(INTARSIA_TORCH_DIR ${TORCH_INSTALL_PREFIX}/share/cmake/Torch)
else()
  find_path(INTARSIA_TORCH_DIR TorchConfig.cmake
            HINTS ${Torch_DIR} ${INTARSIA_TORCH_HINTS}
            PATH_SUFFIXES ../share/cmake/Torch share/cmake/Torch)
  mark_as_advanced(INTARSIA_TORCH_DIR)
  if(NOT INTARSIA_TORCH_DIR)
    message(FATAL_ERROR "There is no LibTorch here. Run tools/setup in Intarsia's source folder, or name a LibTorch in "
                        "CMAKE_PREFIX_PATH (tried: ${INTARSIA_TRIED_VERSIONS}).")
  endif()
endif()
get_filename_component(INTARSIA_TORCH_ROOT "${INTARSIA_TORCH_DIR}/../../.." ABSOLUTE)
include(${INTARSIA_TORCH_DIR}/TorchConfigVersion.cmake)
set(INTARSIA_TORCH_VERSION ${PACKAGE_VERSION})
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _minor "${INTARSIA_TORCH_VERSION}")
if(INTARSIA_BUILT_FOR)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" _built_for "${INTARSIA_BUILT_FOR}")
  if(NOT _minor STREQUAL _built_for)
    message(FATAL_ERROR "Intarsia was built for LibTorch ${INTARSIA_BUILT_FOR}, but the one in ${INTARSIA_TORCH_ROOT} is "
                        "${INTARSIA_TORCH_VERSION}. Name a LibTorch ${_built_for} in CMAKE_PREFIX_PATH, or build Intarsia for this one.")
  endif()
elseif(NOT _minor IN_LIST INTARSIA_TRIED_VERSIONS)
  if(INTARSIA_STRICT_VERSION)
    message(FATAL_ERROR "Intarsia was tried with LibTorch ${INTARSIA_TRIED_VERSIONS}, but the one in ${INTARSIA_TORCH_ROOT} is "
                        "${INTARSIA_TORCH_VERSION}. Name another in CMAKE_PREFIX_PATH, or leave INTARSIA_STRICT_VERSION out.")
  endif()
  message(WARNING "Intarsia was tried with LibTorch ${INTARSIA_TRIED_VERSIONS}, but the one in ${INTARSIA_TORCH_ROOT} is "
                  "${INTARSIA_TORCH_VERSION}: it may not compile, and `make test` shows what differs.")
endif()

add_library(intarsia::libtorch INTERFACE IMPORTED)
if(TARGET torch)
  target_link_libraries(intarsia::libtorch INTERFACE torch)
  return()
endif()
message(STATUS "LibTorch ${INTARSIA_TORCH_VERSION}: ${INTARSIA_TORCH_ROOT}")

if(EXISTS ${INTARSIA_TORCH_ROOT}/lib/libtorch_cuda.so)
  # TorchConfig of a CUDA build (PyPI's default for Linux) insists on a whole CUDA toolkit with its compiler. We compile
  # no CUDA ourselves: headers and the CPU half are enough. A program that uses GPUs loads the CUDA half as well, by
  # linking torch or by Python's import.
  set(_torch ${INTARSIA_TORCH_ROOT})
  target_compile_definitions(intarsia::libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_include_directories(intarsia::libtorch INTERFACE ${_torch}/include ${_torch}/include/torch/csrc/api/include)
  target_link_libraries(intarsia::libtorch INTERFACE ${_torch}/lib/libtorch_cpu.so ${_torch}/lib/libc10.so)
  add_library(intarsia::libtorch_cuda INTERFACE IMPORTED)  # for programs that want GPUs: libtorch.so pulls in the CUDA half
  target_link_libraries(intarsia::libtorch_cuda INTERFACE intarsia::libtorch
                        "-Wl,--no-as-needed,${_torch}/lib/libtorch.so,--as-needed")
else()
  set(_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)  # TorchConfig warns of a static library that only PyTorch's own build has
  find_package(Torch REQUIRED CONFIG PATHS ${INTARSIA_TORCH_DIR} NO_DEFAULT_PATH)
  set(CMAKE_MESSAGE_LOG_LEVEL "${_log_level}")
  target_link_libraries(intarsia::libtorch INTERFACE torch)
endif()
