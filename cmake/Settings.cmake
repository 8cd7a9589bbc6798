# SPDX-License-Identifier: Apache-2.0
# Language level, warnings, tools.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # ccache needs these to reuse objects compiled with a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Wno-unused-parameter)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(
    -Wno-restrict  # a false positive of g++ 12 in std::string::insert
    -fpch-preprocess)  # lets ccache hash the contents of a precompiled header
else()
  add_compile_options(
    -Wno-deprecated-declarations  # a false positive inside ranges::stable_sort of libstdc++ 12
    "SHELL:-Xclang -fno-pch-timestamp")  # a precompiled header from ccache has another time
endif()
# Messages, files and unit buffers are bytes that are read in place as numbers of their type; the language calls that undefined.
add_compile_options(-fno-strict-aliasing)
if(STEPFORGE_SANITIZE)
  add_compile_options(-fsanitize=${STEPFORGE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${STEPFORGE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # The stack frames that it keeps are searched at each call; a test of many exceptions takes twenty times longer.
    add_compile_options(-fsanitize-address-use-after-return=never)
  endif()
endif()
if(STEPFORGE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
endif()
