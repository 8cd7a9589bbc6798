# SPDX-License-Identifier: Apache-2.0
# libstepforge_nccl.so, the engine for GPUs, where nvcc and NCCL are found. Nothing links it: the torch library loads it when
# [comm] backend = nccl.
if(STEPFORGE_NVCC)
  get_filename_component(nvcc ${STEPFORGE_NVCC} REALPATH)
  get_filename_component(cuda ${nvcc} DIRECTORY)
  get_filename_component(cuda ${cuda} DIRECTORY)
  find_path(STEPFORGE_NCCL_INCLUDE nccl.h HINTS ${cuda}/include)
  find_library(STEPFORGE_NCCL nccl HINTS ${cuda}/lib64 ${cuda}/lib)
  find_library(STEPFORGE_CUDART cudart HINTS ${cuda}/lib64 ${cuda}/lib)
endif()
if(NOT STEPFORGE_NVCC OR NOT STEPFORGE_NCCL_INCLUDE OR NOT STEPFORGE_NCCL OR NOT STEPFORGE_CUDART)
  message(STATUS "Leaving out the NCCL plug-in, which needs nvcc, nccl.h, libnccl and libcudart")
  return()
endif()

set(kernel ${CMAKE_SOURCE_DIR}/stepforge/engines/nccl/device_sum)
# nvcc does not know the options of the rest of the build, so CUDA is not a language of this project.
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/device_sum.o
  COMMAND ${STEPFORGE_NVCC} -std=c++20 -O3 -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC ${STEPFORGE_CUDA_TARGETS}
    -I ${CMAKE_SOURCE_DIR} -c ${kernel}.cu -o ${CMAKE_BINARY_DIR}/device_sum.o
  DEPENDS ${kernel}.cu ${kernel}.h ${CMAKE_SOURCE_DIR}/stepforge/base/dtype.h
  COMMENT "Building CUDA object device_sum.o" VERBATIM)
add_library(stepforge_nccl MODULE ${CMAKE_SOURCE_DIR}/stepforge/engines/nccl/nccl_world.cpp ${CMAKE_BINARY_DIR}/device_sum.o)
target_include_directories(stepforge_nccl SYSTEM PRIVATE ${cuda}/include ${STEPFORGE_NCCL_INCLUDE})
target_link_libraries(stepforge_nccl PRIVATE stepforge_core ${STEPFORGE_NCCL} ${STEPFORGE_CUDART})
target_link_options(stepforge_nccl PRIVATE -Wl,-z,defs)
get_filename_component(libraries ${STEPFORGE_CUDART} DIRECTORY)
set_target_properties(stepforge_nccl PROPERTIES BUILD_RPATH "$ORIGIN;${libraries}" INSTALL_RPATH "$ORIGIN;${libraries}")
add_dependencies(stepforge stepforge_nccl)
