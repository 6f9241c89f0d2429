# Gives the target intarsia::libtorch for LibTorch 2.13, and its folder as INTARSIA_TORCH_ROOT. Used by our own build
# and, installed beside IntarsiaConfig.cmake, by the projects that use us. LibTorch is the one that the project around
# us has found, else it is searched where CMAKE_PREFIX_PATH says, then in INTARSIA_TORCH_HINTS.

if(TARGET intarsia::libtorch)
  return()
endif()
add_library(intarsia::libtorch INTERFACE IMPORTED)
if(TARGET torch)
  set(INTARSIA_TORCH_ROOT ${TORCH_INSTALL_PREFIX})
  target_link_libraries(intarsia::libtorch INTERFACE torch)
  return()
endif()

# find_path tries <prefix>/include/<suffix> for each prefix.
find_path(INTARSIA_TORCH_DIR TorchConfig.cmake
          HINTS ${Torch_DIR} ${INTARSIA_TORCH_HINTS}
          PATH_SUFFIXES ../share/cmake/Torch share/cmake/Torch)
mark_as_advanced(INTARSIA_TORCH_DIR)
if(NOT INTARSIA_TORCH_DIR)
  message(FATAL_ERROR "There is no LibTorch here. Run tools/setup in Intarsia's source folder, or name a LibTorch 2.13 "
                      "in CMAKE_PREFIX_PATH.")
endif()
get_filename_component(INTARSIA_TORCH_ROOT "${INTARSIA_TORCH_DIR}/../../.." ABSOLUTE)

# The version file of LibTorch accepts every newer version; its C++ interface is not that stable.
include(${INTARSIA_TORCH_DIR}/TorchConfigVersion.cmake)
if(NOT PACKAGE_VERSION MATCHES "^2\\.13\\.")
  message(FATAL_ERROR "Intarsia needs LibTorch 2.13, but the one in ${INTARSIA_TORCH_ROOT} is ${PACKAGE_VERSION}. "
                      "Name a LibTorch 2.13 in CMAKE_PREFIX_PATH.")
endif()
message(STATUS "LibTorch ${PACKAGE_VERSION}: ${INTARSIA_TORCH_ROOT}")

if(EXISTS ${INTARSIA_TORCH_ROOT}/lib/libtorch_cuda.so)
  # TorchConfig of a CUDA build (PyPI's default for Linux) insists on a whole CUDA toolkit with its compiler. We compile
  # no CUDA ourselves: headers and libraries are enough. libtorch.so pulls in the CUDA half; nothing else refers to it.
  set(_torch ${INTARSIA_TORCH_ROOT})
  target_compile_definitions(intarsia::libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_include_directories(intarsia::libtorch INTERFACE ${_torch}/include ${_torch}/include/torch/csrc/api/include)
  target_link_libraries(intarsia::libtorch INTERFACE
    "-Wl,--no-as-needed,${_torch}/lib/libtorch.so,--as-needed" ${_torch}/lib/libtorch_cpu.so ${_torch}/lib/libc10.so)
else()
  set(_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)  # TorchConfig warns of a static library that only PyTorch's own build has
  find_package(Torch 2.13 REQUIRED CONFIG PATHS ${INTARSIA_TORCH_DIR} NO_DEFAULT_PATH)
  set(CMAKE_MESSAGE_LOG_LEVEL "${_log_level}")
  target_link_libraries(intarsia::libtorch INTERFACE torch)
endif()
