# SPDX-License-Identifier: Apache-2.0
# The rooms of stepforge/rooms.json: one static library per torch-free room, stepforge_core of all of them, stepforge_torch
# of the rooms below the libtorch line, and the program. STEPFORGE_LINK_<room> lists what a room links besides other rooms.
set(STEPFORGE_ROOMS_FILE ${CMAKE_SOURCE_DIR}/stepforge/rooms.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${STEPFORGE_ROOMS_FILE})

# Sets STEPFORGE_ROOMS_core, _program and _torch to the names of the rooms, and STEPFORGE_MAY_INCLUDE_<room>.
function(stepforge_read_rooms)
  file(READ ${STEPFORGE_ROOMS_FILE} text)
  string(JSON count LENGTH "${text}" rooms)
  math(EXPR last "${count} - 1")
  foreach(i RANGE ${last})
    string(JSON name GET "${text}" rooms ${i} name)
    string(JSON library GET "${text}" rooms ${i} library)
    list(APPEND STEPFORGE_ROOMS_${library} ${name})
    string(JSON uses LENGTH "${text}" rooms ${i} may_include)
    set(names "")
    if(uses GREATER 0)
      math(EXPR last_use "${uses} - 1")
      foreach(j RANGE ${last_use})
        string(JSON used GET "${text}" rooms ${i} may_include ${j})
        list(APPEND names ${used})
      endforeach()
    endif()
    set(STEPFORGE_MAY_INCLUDE_${name} "${names}" PARENT_SCOPE)
  endforeach()
  foreach(library core program torch)
    set(STEPFORGE_ROOMS_${library} "${STEPFORGE_ROOMS_${library}}" PARENT_SCOPE)
  endforeach()
endfunction()

# stepforge_clang_pch(TARGET OWNER HEADER...): with clang, TARGET reads HEADER... and some others as precompiled by OWNER.
function(stepforge_clang_pch target owner)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    return()  # g++ gains nothing
  endif()
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE <algorithm> <chrono> <cmath> <filesystem> <functional> <map> <memory> <mutex>
      <numeric> <optional> <set> <span> <string> <thread> <utility> <vector> <fmt/format.h> <nlohmann/json.hpp> ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

function(stepforge_room name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/${name}/*.cpp)
  add_library(sf_${name} STATIC ${sources})
  target_include_directories(sf_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  foreach(used ${STEPFORGE_MAY_INCLUDE_${name}})
    target_link_libraries(sf_${name} PUBLIC sf_${used})
  endforeach()
  target_link_libraries(sf_${name} PUBLIC ${STEPFORGE_LINK_${name}})
  stepforge_clang_pch(sf_${name} sf_base)
endfunction()

# The text of `stepforge version`, compiled into one file only.
function(stepforge_version)
  execute_process(COMMAND git rev-parse --short HEAD WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT commit)
    set(commit unknown)
  endif()
  set_source_files_properties(${CMAKE_SOURCE_DIR}/stepforge/base/version.cpp PROPERTIES COMPILE_DEFINITIONS
    "STEPFORGE_VERSION=\"${PROJECT_VERSION}\";STEPFORGE_COMMIT=\"${commit}\";STEPFORGE_TORCH_VERSION=\"${TorchWheel_VERSION}\";STEPFORGE_COMPILER=\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\"")
endfunction()

# stepforge/base/plugin_build.h: at once, since clang-tidy reads it in a folder that is never built, and again when a header changes.
function(stepforge_plugin_build)
  set(output ${CMAKE_BINARY_DIR}/generated/stepforge/base/plugin_build.h)
  set(script ${CMAKE_SOURCE_DIR}/cmake/PublicHeaders.cmake)
  stepforge_write_plugin_build(${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR} ${output})
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -D source_dir=${CMAKE_SOURCE_DIR} -D output=${output} -D depfile=${output}.d -P ${script}
    DEPENDS ${script} ${STEPFORGE_ROOMS_FILE} DEPFILE ${output}.d
    COMMENT "Hashing the headers of plug-ins" VERBATIM)
  target_sources(sf_base PRIVATE ${output})
  set_source_files_properties(${CMAKE_SOURCE_DIR}/stepforge/base/plugin_loader.cpp PROPERTIES
    INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
endfunction()

function(stepforge_core)
  add_library(stepforge_core SHARED)
  foreach(room ${STEPFORGE_ROOMS_core})
    stepforge_room(${room})
    target_sources(stepforge_core PRIVATE $<TARGET_OBJECTS:sf_${room}>)
    target_link_libraries(stepforge_core PRIVATE ${STEPFORGE_LINK_${room}})
  endforeach()
  foreach(room config plan)  # which read the embedded presets and machines
    target_include_directories(sf_${room} PRIVATE ${CMAKE_BINARY_DIR}/generated)
  endforeach()
  target_include_directories(stepforge_core PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>)
  target_compile_features(stepforge_core INTERFACE cxx_std_20)
  set_target_properties(stepforge_core PROPERTIES LINKER_LANGUAGE CXX BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
endfunction()

function(stepforge_torch_library)
  foreach(room ${STEPFORGE_ROOMS_torch})
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/${room}/*.cpp)
    list(APPEND all ${sources})
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/kernels/cpu/*.cpp ${CMAKE_SOURCE_DIR}/stepforge/nn/calls/*.cpp
    ${CMAKE_SOURCE_DIR}/stepforge/app/torch/gpu_check/*.cpp)
  add_library(stepforge_torch SHARED ${all} ${sources})
  target_link_libraries(stepforge_torch PUBLIC stepforge_core torch::cpu nlohmann_json::nlohmann_json Threads::Threads)
  target_compile_options(stepforge_torch PRIVATE -fopenmp)
  target_link_options(stepforge_torch PRIVATE -Wl,-z,defs)
  target_precompile_headers(stepforge_torch PRIVATE <stepforge/kernels/torch_pch.h>)
  # Kernels are vectorised for the machine's instruction sets by function multiversioning, not by -march=native. Without these flags a
  # square root may set errno, and each side of a select may trap: loops with them are not vectorised.
  target_compile_options(stepforge_torch PRIVATE -fno-math-errno -fno-trapping-math)
  # Initial values and factors of codes are the same on processors with and without fused multiply-adds.
  set_source_files_properties(${CMAKE_SOURCE_DIR}/stepforge/kernels/cpu/normal_numbers.cpp
    ${CMAKE_SOURCE_DIR}/stepforge/kernels/cpu/factor_codes.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
  # The header of c10d's Gloo group includes headers of Gloo that PyTorch packages lack.
  set_source_files_properties(${CMAKE_SOURCE_DIR}/stepforge/engines/gloo_links.cpp PROPERTIES
    COMPILE_DEFINITIONS USE_C10D_GLOO INCLUDE_DIRECTORIES ${CMAKE_SOURCE_DIR}/stepforge/engines/gloo_declarations)
  set_target_properties(stepforge_torch PROPERTIES BUILD_RPATH "$ORIGIN;${TorchWheel_RPATH}")
endfunction()

function(stepforge_program)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/app/*.cpp)
  # The functions of MKL are found in the program first, even where it loads libtorch before its own library (app/torch_library.cpp).
  add_executable(stepforge ${sources} ${CMAKE_SOURCE_DIR}/stepforge/kernels/mkl_setup.cpp)
  target_link_options(stepforge PRIVATE -Wl,--export-dynamic-symbol=mkl_serv_intel_cpu_true -Wl,--export-dynamic-symbol=mkl_serv_intel_cpu)
  target_link_libraries(stepforge PRIVATE stepforge_core CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json dl)
  set_target_properties(stepforge PROPERTIES BUILD_RPATH "$ORIGIN")
  if(TARGET stepforge_torch)
    add_dependencies(stepforge stepforge_torch)
  endif()
endfunction()
