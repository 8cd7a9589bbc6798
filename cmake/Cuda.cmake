# SPDX-License-Identifier: Apache-2.0
# The CUDA kernels of stepforge/cuda. Where nvcc is found: STEPFORGE_CUDA_ROOT and STEPFORGE_CUDART (libcudart); STEPFORGE_CUDA_OBJECTS,
# the objects for a library that launches kernels; the target stepforge_cuda_kernels, which compiles them and prints the registers and
# spills of each; and the target stepforge_cuda, the plug-in. Everywhere: stepforge_cuda_tests(), for which the same files are compiled as
# C++ (stepforge/cuda/cuda_on_cpu.h). Where nccl.h is found too: the plug-in has NCCL, and there is stepforge_nccl_tests().
file(GLOB STEPFORGE_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/cuda/*.cu)
set(STEPFORGE_CUDA_OBJECTS "")
set(STEPFORGE_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPUs for which kernels are compiled")
find_program(STEPFORGE_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(STEPFORGE_NVCC)
  get_filename_component(STEPFORGE_CUDA_ROOT ${STEPFORGE_NVCC} REALPATH)
  get_filename_component(STEPFORGE_CUDA_ROOT ${STEPFORGE_CUDA_ROOT} DIRECTORY)
  get_filename_component(STEPFORGE_CUDA_ROOT ${STEPFORGE_CUDA_ROOT} DIRECTORY)
  find_library(STEPFORGE_CUDART cudart HINTS ${STEPFORGE_CUDA_ROOT}/lib64 ${STEPFORGE_CUDA_ROOT}/lib)
  find_path(STEPFORGE_NCCL_INCLUDE nccl.h HINTS ${STEPFORGE_CUDA_ROOT}/include)
endif()

# nvcc does not know the options of the rest of the build, so CUDA is not a language of this project.
if(STEPFORGE_NVCC)
  set(targets "")
  foreach(architecture ${STEPFORGE_CUDA_ARCHITECTURES})
    list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
  foreach(source ${STEPFORGE_CUDA_SOURCES})
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${STEPFORGE_NVCC} -std=c++20 --expt-relaxed-constexpr -O3 -ccbin ${CMAKE_CXX_COMPILER}
        -Xcompiler -fPIC,-Wall,-Wextra ${targets} -Xptxas -v -MMD -MF ${object}.d -I ${CMAKE_SOURCE_DIR} -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d
      COMMENT "Building CUDA object ${name}.o" VERBATIM)
    list(APPEND STEPFORGE_CUDA_OBJECTS ${object})
  endforeach()
  add_custom_target(stepforge_cuda_kernels DEPENDS ${STEPFORGE_CUDA_OBJECTS})
endif()

# libstepforge_cuda.so, the plug-in of training.device = cuda. It is not part of `all`: a library that is there is loaded, and loading this
# one needs cuBLAS and other libraries that the folder of libtorch lacks.
function(stepforge_cuda_plugin)
  set(libtorch_cuda ${TorchWheel_ROOT}/lib/libtorch_cuda.so)
  set(libc10_cuda ${TorchWheel_ROOT}/lib/libc10_cuda.so)
  if(NOT STEPFORGE_NVCC OR NOT STEPFORGE_CUDART OR NOT EXISTS ${libtorch_cuda} OR NOT EXISTS ${libc10_cuda})
    message(STATUS "Leaving out the target stepforge_cuda, which needs nvcc, libcudart, and libtorch_cuda and libc10_cuda of a CUDA wheel")
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/cuda/plugin/*.cpp)
  add_library(stepforge_cuda MODULE EXCLUDE_FROM_ALL ${sources} ${STEPFORGE_CUDA_OBJECTS})
  target_include_directories(stepforge_cuda SYSTEM PRIVATE ${STEPFORGE_CUDA_ROOT}/include)
  target_link_libraries(stepforge_cuda PRIVATE stepforge_torch ${libtorch_cuda} ${libc10_cuda} ${STEPFORGE_CUDART})
  # libtorch_cuda registers its operations when it is loaded, so it stays even if no symbol of it is named here.
  target_link_options(stepforge_cuda PRIVATE -Wl,--no-as-needed -Wl,--allow-shlib-undefined)
  set_target_properties(stepforge_cuda PROPERTIES BUILD_RPATH "$ORIGIN;${TorchWheel_RPATH}")
  if(STEPFORGE_NCCL_INCLUDE)
    # libnccl is that of libtorch_cuda, which needs it: a process has one.
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/cuda/nccl/*.cpp)
    target_sources(stepforge_cuda PRIVATE ${sources})
    target_include_directories(stepforge_cuda SYSTEM PRIVATE ${STEPFORGE_NCCL_INCLUDE})
    target_compile_definitions(stepforge_cuda PRIVATE STEPFORGE_NCCL)
  else()
    message(STATUS "The plug-in for GPUs has no NCCL, because nccl.h is missing")
  endif()
endfunction()
stepforge_cuda_plugin()

# test_cuda, after the tests of the torch rooms, whose precompiled header it uses. It needs no CUDA.
function(stepforge_cuda_tests)
  stepforge_test(cuda LINK stepforge_torch fmt::fmt)
  # The plug-in's functions of tensors too: they need no CUDA.
  file(GLOB functions CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/cuda/plugin/kernels*.cpp)
  target_sources(test_cuda PRIVATE ${STEPFORGE_CUDA_SOURCES} ${functions} ${CMAKE_SOURCE_DIR}/stepforge/cuda/plugin/arguments.cpp)
  set_source_files_properties(${STEPFORGE_CUDA_SOURCES} PROPERTIES LANGUAGE CXX  # CMake adds -x c++
    SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  target_compile_options(test_cuda PRIVATE -fopenmp)
  target_precompile_headers(test_cuda REUSE_FROM test_kernels)
endfunction()

# test_nccl. It needs the headers of CUDA and NCCL, but not their libraries: tests/nccl has fakes of the functions that are called.
function(stepforge_nccl_tests)
  if(NOT STEPFORGE_NVCC OR NOT STEPFORGE_NCCL_INCLUDE)
    message(STATUS "Leaving out test_nccl, which needs the headers of CUDA and NCCL")
    return()
  endif()
  stepforge_test(nccl LINK stepforge_core fmt::fmt)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/cuda/nccl/*.cpp)
  target_sources(test_nccl PRIVATE ${sources})
  target_include_directories(test_nccl SYSTEM PRIVATE ${STEPFORGE_CUDA_ROOT}/include ${STEPFORGE_NCCL_INCLUDE})
  set_target_properties(test_nccl PROPERTIES UNITY_BUILD OFF)  # the headers of CUDA and cuda_on_cpu.h exclude each other
endfunction()
