# SPDX-License-Identifier: Apache-2.0
# tests/fuzz/<name>_fuzz.cpp become one libFuzzer program each, with the address and undefined-behaviour sanitizers.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "libFuzzer comes with clang: configure with CMAKE_CXX_COMPILER=clang++-19 (make fuzz does)")
endif()
file(GLOB fuzzers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*_fuzz.cpp)
foreach(source ${fuzzers})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE sf_config sf_data sf_tensorfile sf_text sf_jinja)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  list(APPEND names ${name})
endforeach()
add_custom_target(fuzzers DEPENDS ${names})
