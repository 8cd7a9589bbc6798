# SPDX-License-Identifier: Apache-2.0
# Finds libtorch inside an installed PyTorch, without Python and without Torch's own CMake config, which requires a
# CUDA toolkit for CUDA wheels. Looks at STEPFORGE_TORCH (cache variable or environment), then at TorchWheel_DEFAULT.
# Defines torch::cpu (libtorch_cpu and libc10 only), TorchWheel_VERSION, TorchWheel_ROOT and TorchWheel_RPATH.
set(STEPFORGE_TORCH "$ENV{STEPFORGE_TORCH}" CACHE PATH "The 'torch' folder of an installed PyTorch")
set(TorchWheel_ROOT "${STEPFORGE_TORCH}")
if(NOT TorchWheel_ROOT)
  set(TorchWheel_ROOT "${TorchWheel_DEFAULT}")
endif()

set(TorchWheel_VERSION "")
if(EXISTS ${TorchWheel_ROOT}/version.py)
  file(STRINGS ${TorchWheel_ROOT}/version.py version_line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" TorchWheel_VERSION "${version_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS TorchWheel_ROOT TorchWheel_VERSION
  VERSION_VAR TorchWheel_VERSION
  HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE "looked at '${TorchWheel_ROOT}', ${TorchWheel_REMEDY}set STEPFORGE_TORCH to the 'torch' folder of a PyTorch ${TorchWheel_FIND_VERSION_MIN}")

if(TorchWheel_FOUND AND NOT TARGET torch::cpu)
  get_filename_component(site ${TorchWheel_ROOT} DIRECTORY)
  file(GLOB cuda_dirs ${site}/nvidia/*/lib)
  set(TorchWheel_RPATH ${TorchWheel_ROOT}/lib ${cuda_dirs})
  add_library(torch::c10 SHARED IMPORTED)
  set_target_properties(torch::c10 PROPERTIES IMPORTED_LOCATION ${TorchWheel_ROOT}/lib/libc10.so)
  # The wheel's own OpenMP run time: a second one in the process would start threads of its own.
  file(GLOB gomp ${TorchWheel_ROOT}/lib/libgomp*.so*)
  list(GET gomp 0 gomp)
  add_library(torch::openmp SHARED IMPORTED)
  set_target_properties(torch::openmp PROPERTIES IMPORTED_LOCATION ${gomp})
  add_library(torch::cpu SHARED IMPORTED)
  set_target_properties(torch::cpu PROPERTIES
    IMPORTED_LOCATION ${TorchWheel_ROOT}/lib/libtorch_cpu.so
    INTERFACE_INCLUDE_DIRECTORIES "${TorchWheel_ROOT}/include;${TorchWheel_ROOT}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "torch::c10;torch::openmp"
    # libtorch_cpu depends on libcupti and libcudart, which the loader finds through the rpath.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined;-Wl,-rpath-link,${TorchWheel_ROOT}/lib")
endif()
