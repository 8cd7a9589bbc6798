# SPDX-License-Identifier: Apache-2.0
# tools/bench/<name>.cpp becomes bench_<name>, built only when asked for: `make bench` does.
foreach(name collectives experts kernels overlap text)
  add_executable(bench_${name} EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tools/bench/${name}.cpp)
  target_link_libraries(bench_${name} PRIVATE stepforge_torch)
  target_compile_options(bench_${name} PRIVATE -fopenmp)
  set_target_properties(bench_${name} PROPERTIES BUILD_RPATH "${CMAKE_BINARY_DIR};${TorchWheel_RPATH}")
endforeach()
target_sources(bench_overlap PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/delayed_world.cpp)

# Without libtorch.
find_package(Threads REQUIRED)
add_executable(bench_peak EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tools/bench/peak.cpp)
target_link_libraries(bench_peak PRIVATE Threads::Threads)
target_compile_options(bench_peak PRIVATE -Wno-psabi)
# For LD_PRELOAD: gives PyTorch the MKL kernels that Stepforge's products have.
add_library(bench_mkl SHARED EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/stepforge/kernels/mkl_setup.cpp)
