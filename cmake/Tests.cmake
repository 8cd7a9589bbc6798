# SPDX-License-Identifier: Apache-2.0
# tests/<room>/*.cpp become one program per room, test_<room>. Each GoogleTest case is a CTest test, room.Suite.Case. Its label is
# `long` if its name contains "LongTest", otherwise `fast`.
find_package(GTest REQUIRED)
include(GoogleTest)

# A static library, so that a program takes only the helpers that it uses.
add_library(test_support STATIC
  ${CMAKE_SOURCE_DIR}/tests/support/delayed_world.cpp
  ${CMAKE_SOURCE_DIR}/tests/support/paths.cpp)
target_include_directories(test_support PUBLIC ${CMAKE_SOURCE_DIR})
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/support/paths.cpp PROPERTIES COMPILE_DEFINITIONS
  "STEPFORGE_SOURCE_DIR=\"${CMAKE_SOURCE_DIR}\";STEPFORGE_BINARY_DIR=\"${CMAKE_BINARY_DIR}\"")

# stepforge_test(ROOM LINK LIBRARY... [CORES N] [TOGETHER SUITE...])
# CORES: how many a case keeps busy, 1 if not given: most cases spend their time on the start of libtorch. TOGETHER: suites with an expensive set-up,
# or of many short cases, each one CTest test on one core.
function(stepforge_test room)
  cmake_parse_arguments(TEST "" "CORES" "LINK;TOGETHER" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${room}/*.cpp)
  add_executable(test_${room} ${sources} ${CMAKE_SOURCE_DIR}/tests/support/main.cpp)
  target_link_libraries(test_${room} PRIVATE test_support ${TEST_LINK} GTest::gtest)
  # Tests gain nothing from full optimisation, which takes the compiler twice as long.
  target_compile_options(test_${room} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(test_${room} PROPERTIES BUILD_RPATH "${CMAKE_BINARY_DIR};${TorchWheel_RPATH}")
  set(properties TIMEOUT 900)
  if(TEST_CORES)
    list(APPEND properties PROCESSORS ${TEST_CORES})
  endif()
  set(apart "")
  foreach(suite ${TEST_TOGETHER})
    add_test(NAME ${room}.${suite} COMMAND test_${room} --gtest_filter=${suite}.* WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    # COST: started first, so that none of them runs alone at the end.
    set_tests_properties(${room}.${suite} PROPERTIES LABELS fast TIMEOUT 900 COST 100)
    string(APPEND apart "${suite}.*:")
  endforeach()
  # CTest asks the programs for their cases, so a build runs none of them.
  gtest_discover_tests(test_${room} DISCOVERY_MODE PRE_TEST TEST_PREFIX ${room}. TEST_FILTER "-${apart}*LongTest*"
    TEST_LIST ${room}_fast WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} PROPERTIES LABELS fast ${properties})
  gtest_discover_tests(test_${room} DISCOVERY_MODE PRE_TEST TEST_PREFIX ${room}. TEST_FILTER "*LongTest*"
    TEST_LIST ${room}_long WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} PROPERTIES LABELS long ${properties} TIMEOUT 3600)
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
  stepforge_test(app LINK stepforge_core fmt::fmt nlohmann_json::nlohmann_json CORES 2 TOGETHER EndToEnd Package)
  add_dependencies(test_app stepforge)
  target_sources(test_app PRIVATE ${CMAKE_SOURCE_DIR}/stepforge/app/doctor_checks.cpp)
  foreach(name wrong_version other_headers not_one failing throwing taken_names several)
    add_library(test_plugin_${name} MODULE ${CMAKE_SOURCE_DIR}/tests/app/plugins/${name}.cpp)
    set_target_properties(test_plugin_${name} PROPERTIES PREFIX "")
    target_link_libraries(test_plugin_${name} PRIVATE stepforge_core)
    target_include_directories(test_plugin_${name} PRIVATE ${CMAKE_BINARY_DIR}/generated)
    add_dependencies(test_app test_plugin_${name})
  endforeach()
  stepforge_test(engines LINK stepforge_torch fmt::fmt TOGETHER OfThreads/Collectives)
  set(together_nn Layers/BlockCostTest)
  set(together_storage Layers/QueuedBackward)
  foreach(room kernels nn models storage fsdp optim checkpoint train prove proofs)
    stepforge_test(${room} LINK stepforge_torch fmt::fmt TOGETHER ${together_${room}})
    target_compile_options(test_${room} PRIVATE -fopenmp)
    # One precompiled header, half a gigabyte, for all test programs.
    if(room STREQUAL "kernels")
      target_precompile_headers(test_${room} PRIVATE <stepforge/kernels/torch_pch.h>)
    else()
      target_precompile_headers(test_${room} REUSE_FROM test_kernels)
    endif()
  endforeach()
endif()
if(TARGET stepforge_arrow)
  # The reader is loaded at run time, as the program does.
  stepforge_test(arrow LINK stepforge_core arrow::parquet fmt::fmt nlohmann_json::nlohmann_json)
  set_target_properties(test_arrow PROPERTIES BUILD_RPATH "${CMAKE_BINARY_DIR};${ArrowWheel_ROOT}")
  add_dependencies(test_arrow stepforge_arrow)
endif()
if(TARGET stepforge_nccl)
  stepforge_test(nccl LINK stepforge_core fmt::fmt CORES 2)
  target_sources(test_nccl PRIVATE $<TARGET_OBJECTS:stepforge_nccl> ${CMAKE_BINARY_DIR}/device_sum.o)
  target_include_directories(test_nccl SYSTEM PRIVATE $<TARGET_PROPERTY:stepforge_nccl,INCLUDE_DIRECTORIES>)
  target_link_libraries(test_nccl PRIVATE ${STEPFORGE_NCCL} ${STEPFORGE_CUDART})
  get_filename_component(libraries ${STEPFORGE_CUDART} DIRECTORY)
  set_target_properties(test_nccl PROPERTIES BUILD_RPATH "${CMAKE_BINARY_DIR};${libraries}")
endif()
