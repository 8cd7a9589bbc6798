# SPDX-License-Identifier: Apache-2.0
# tests/<room>/*.cpp become one program per room, test_<room>. Each suite of GoogleTest is a CTest test, room.Suite, because the start
# of libtorch takes longer than most cases. Its label is `fast`. A case whose name contains "LongTest" is a CTest test with the label `long`.
find_package(GTest REQUIRED)

# A static library, so that a program takes only the helpers that it uses.
add_library(test_support STATIC
  ${CMAKE_SOURCE_DIR}/tests/support/delayed_world.cpp
  ${CMAKE_SOURCE_DIR}/tests/support/paths.cpp)
target_include_directories(test_support PUBLIC ${CMAKE_SOURCE_DIR})
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/support/paths.cpp PROPERTIES COMPILE_DEFINITIONS
  "STEPFORGE_SOURCE_DIR=\"${CMAKE_SOURCE_DIR}\";STEPFORGE_BINARY_DIR=\"${CMAKE_BINARY_DIR}\"")

# stepforge_test(ROOM LINK LIBRARY... [BY_CASE] [TOGETHER SUITE...])
# BY_CASE: each case is a CTest test, room.Suite.Case, because cases take seconds; except of the suites TOGETHER, with an expensive
# set-up.
function(stepforge_test room)
  cmake_parse_arguments(TEST "BY_CASE" "" "LINK;TOGETHER" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${room}/*.cpp)
  add_executable(test_${room} ${sources} ${CMAKE_SOURCE_DIR}/tests/support/main.cpp)
  target_link_libraries(test_${room} PRIVATE test_support ${TEST_LINK} GTest::gtest)
  # Tests gain nothing from full optimisation, which takes the compiler twice as long.
  target_compile_options(test_${room} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(test_${room} PROPERTIES BUILD_RPATH "${CMAKE_BINARY_DIR};${TorchWheel_RPATH}")
  # CTest asks the programs for their tests, so a build runs none of them.
  string(JOIN "\n" discovery
    "set(ROOM ${room})" "set(PROGRAM ${CMAKE_BINARY_DIR}/test_${room})" "set(FOLDER ${CMAKE_SOURCE_DIR})"
    "set(BY_CASE ${TEST_BY_CASE})" "set(TOGETHER ${TEST_TOGETHER})"
    "include(${CMAKE_SOURCE_DIR}/cmake/DiscoverTests.cmake)" "")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/test_${room}_discovery.cmake CONTENT "${discovery}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_BINARY_DIR}/test_${room}_discovery.cmake)
endfunction()

set(links_of_records_tests sf_dataset)  # which show what becomes of records
foreach(room ${STEPFORGE_ROOMS_core})
  if(EXISTS ${CMAKE_SOURCE_DIR}/tests/${room})
    stepforge_test(${room} LINK sf_${room} ${links_of_${room}_tests} rapidcheck)
    stepforge_clang_pch(test_${room} test_base <gtest/gtest.h>)
  endif()
endforeach()

# It replaces operator new, which the sanitizers of other programs should see.
foreach(room records step tensorfile text)
  target_sources(test_${room} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/allocation_meter.cpp)
endforeach()

if(TARGET stepforge_torch)
  # Tests of the whole program; its ranks and their threads share the machine.
  stepforge_test(app LINK stepforge_core fmt::fmt nlohmann_json::nlohmann_json BY_CASE TOGETHER EndToEnd Package)
  add_dependencies(test_app stepforge)
  target_sources(test_app PRIVATE ${CMAKE_SOURCE_DIR}/stepforge/app/doctor_checks.cpp ${CMAKE_SOURCE_DIR}/stepforge/app/finetune_choices.cpp
    ${CMAKE_SOURCE_DIR}/stepforge/app/finetune_data.cpp)
  foreach(name wrong_version other_headers not_one failing throwing taken_names several)
    add_library(test_plugin_${name} MODULE ${CMAKE_SOURCE_DIR}/tests/app/plugins/${name}.cpp)
    set_target_properties(test_plugin_${name} PROPERTIES PREFIX "")
    target_link_libraries(test_plugin_${name} PRIVATE stepforge_core)
    target_include_directories(test_plugin_${name} PRIVATE ${CMAKE_BINARY_DIR}/generated)
    add_dependencies(test_app test_plugin_${name})
  endforeach()
  stepforge_test(engines LINK stepforge_torch fmt::fmt)
  set(by_case_proofs BY_CASE)
  foreach(room kernels nn models storage fsdp optim checkpoint train prove proofs)
    stepforge_test(${room} LINK stepforge_torch fmt::fmt ${by_case_${room}})
    target_compile_options(test_${room} PRIVATE -fopenmp)
    # One precompiled header, half a gigabyte, for all test programs.
    if(room STREQUAL "kernels")
      target_precompile_headers(test_${room} PRIVATE <stepforge/kernels/torch_pch.h>)
    else()
      target_precompile_headers(test_${room} REUSE_FROM test_kernels)
    endif()
  endforeach()
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")  # others have no clones, or vectorise none
    add_test(NAME kernels.EveryCloneIsVectorised
      COMMAND python3 -B ${CMAKE_SOURCE_DIR}/tests/kernels/vector_clones.py $<TARGET_FILE:stepforge_torch>)
    # As on a processor that has neither bf16 instructions nor tiles.
    add_test(NAME kernels.ProductsAreRightWithoutBf16Instructions COMMAND test_kernels --gtest_filter=Linear*:GroupedProduct*:*Attention* --gtest_brief=1)
    set_tests_properties(kernels.ProductsAreRightWithoutBf16Instructions PROPERTIES
      ENVIRONMENT ONEDNN_MAX_CPU_ISA=AVX2 PASS_REGULAR_EXPRESSION "PASSED  \\] [1-9]" FAIL_REGULAR_EXPRESSION "FAILED")
    set_tests_properties(kernels.EveryCloneIsVectorised kernels.ProductsAreRightWithoutBf16Instructions PROPERTIES LABELS fast)
  endif()
endif()
if(TARGET stepforge_torch)
  stepforge_cuda_tests()
  stepforge_nccl_tests()
endif()
if(TARGET stepforge_sim)
  stepforge_test(sim LINK stepforge_sim fmt::fmt)
  target_precompile_headers(test_sim REUSE_FROM test_kernels)
  target_compile_options(test_sim PRIVATE -fopenmp)
  # The stages of `stepforge gpu-check`; some start the program.
  stepforge_test(gpu_check LINK stepforge_torch fmt::fmt)
  target_precompile_headers(test_gpu_check REUSE_FROM test_kernels)
  target_compile_options(test_gpu_check PRIVATE -fopenmp)
  add_dependencies(test_gpu_check stepforge stepforge_sim)
endif()
if(TARGET stepforge_arrow)
  # The reader is loaded at run time, as the program does.
  stepforge_test(arrow LINK stepforge_core arrow::parquet fmt::fmt nlohmann_json::nlohmann_json)
  set_target_properties(test_arrow PROPERTIES BUILD_RPATH "${CMAKE_BINARY_DIR};${ArrowWheel_ROOT}")
  add_dependencies(test_arrow stepforge_arrow)
endif()
