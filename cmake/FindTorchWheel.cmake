# Finds libtorch inside an installed PyTorch without asking Python or Torch's own CMake config, which demands a
# CUDA toolkit on CUDA wheels. Looks at STEPFORGE_TORCH (cache variable or environment), then at the private folder
# that scripts/setup.sh fills. Defines torch::cpu (libtorch_cpu and libc10 only), TorchWheel_VERSION and TorchWheel_RPATH.
set(STEPFORGE_TORCH "$ENV{STEPFORGE_TORCH}" CACHE PATH "The 'torch' folder of an installed PyTorch")
if(NOT STEPFORGE_TORCH)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup.sh --print
    OUTPUT_VARIABLE STEPFORGE_TORCH OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()

set(TorchWheel_VERSION "")
if(EXISTS ${STEPFORGE_TORCH}/version.py)
  file(STRINGS ${STEPFORGE_TORCH}/version.py version_line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" TorchWheel_VERSION "${version_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS STEPFORGE_TORCH TorchWheel_VERSION
  VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, or set STEPFORGE_TORCH to the 'torch' folder of a PyTorch 2.11")

if(TorchWheel_FOUND AND NOT TARGET torch::cpu)
  # libtorch promises no ABI across minor versions.
  if(NOT TorchWheel_VERSION MATCHES "^2\\.11\\.")
    message(FATAL_ERROR "libtorch ${TorchWheel_VERSION} at ${STEPFORGE_TORCH}: this source is made for 2.11")
  endif()
  get_filename_component(site ${STEPFORGE_TORCH} DIRECTORY)
  file(GLOB cuda_dirs ${site}/nvidia/*/lib)
  set(TorchWheel_RPATH ${STEPFORGE_TORCH}/lib ${cuda_dirs})
  add_library(torch::c10 SHARED IMPORTED)
  set_target_properties(torch::c10 PROPERTIES IMPORTED_LOCATION ${STEPFORGE_TORCH}/lib/libc10.so)
  # The wheel's own OpenMP run time: a second one in the process would bring threads of its own.
  file(GLOB gomp ${STEPFORGE_TORCH}/lib/libgomp*.so*)
  list(GET gomp 0 gomp)
  add_library(torch::openmp SHARED IMPORTED)
  set_target_properties(torch::openmp PROPERTIES IMPORTED_LOCATION ${gomp})
  add_library(torch::cpu SHARED IMPORTED)
  set_target_properties(torch::cpu PROPERTIES
    IMPORTED_LOCATION ${STEPFORGE_TORCH}/lib/libtorch_cpu.so
    INTERFACE_INCLUDE_DIRECTORIES "${STEPFORGE_TORCH}/include;${STEPFORGE_TORCH}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "torch::c10;torch::openmp"
    # libtorch_cpu names libcupti and libcudart; the loader finds them through the rpath.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined;-Wl,-rpath-link,${STEPFORGE_TORCH}/lib")
endif()
