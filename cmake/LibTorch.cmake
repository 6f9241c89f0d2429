# Gives the target `torch` of LibTorch 2.13, and its folder as INTARSIA_TORCH_ROOT. Used by our own build and,
# installed beside IntarsiaConfig.cmake, by the projects that use us. LibTorch is searched where CMAKE_PREFIX_PATH
# says, then in INTARSIA_TORCH_HINTS.

if(TARGET torch)  # the project around us has found it
  set(INTARSIA_TORCH_ROOT ${TORCH_INSTALL_PREFIX})
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

# A CUDA build of LibTorch (PyPI's default on Linux) insists on the CUDA toolkit at configure time. We call no CUDA
# function ourselves, so without the toolkit we link the CPU half of it.
set(_intarsia_cpu_half FALSE)
if(EXISTS ${INTARSIA_TORCH_ROOT}/lib/libtorch_cuda.so)
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND)
    set(_intarsia_cpu_half TRUE)
  endif()
endif()

if(_intarsia_cpu_half)
  message(STATUS "LibTorch is a CUDA build and there is no CUDA toolkit: using its CPU half")
  add_library(torch INTERFACE IMPORTED)
  set_target_properties(torch PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
    INTERFACE_INCLUDE_DIRECTORIES
      "${INTARSIA_TORCH_ROOT}/include;${INTARSIA_TORCH_ROOT}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${INTARSIA_TORCH_ROOT}/lib/libtorch_cpu.so;${INTARSIA_TORCH_ROOT}/lib/libc10.so")
else()
  set(_intarsia_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)  # TorchConfig warns of a static library that only its own build has
  find_package(Torch 2.13 REQUIRED CONFIG PATHS ${INTARSIA_TORCH_DIR} NO_DEFAULT_PATH)
  set(CMAKE_MESSAGE_LOG_LEVEL "${_intarsia_log_level}")
endif()
message(STATUS "LibTorch ${PACKAGE_VERSION}: ${INTARSIA_TORCH_ROOT}")
