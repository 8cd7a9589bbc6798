# SPDX-License-Identifier: Apache-2.0
# The headers that a plug-in may include: the public headers of stepforge/rooms.json and those that these include. Their hash, in
# stepforge/base/plugin_build.h, is compiled into the program and into each plug-in, which must have been built with the same headers.
#
# As a script, it writes that header: cmake -D source_dir=. -D output=FILE -D depfile=FILE -P cmake/PublicHeaders.cmake
cmake_minimum_required(VERSION 3.25)

# Sets `result` to their paths below source_dir, sorted.
function(stepforge_public_headers source_dir result)
  file(READ ${source_dir}/stepforge/rooms.json text)
  string(JSON count LENGTH "${text}" public_headers)
  math(EXPR last "${count} - 1")
  foreach(i RANGE ${last})
    string(JSON header GET "${text}" public_headers ${i})
    list(APPEND todo stepforge/${header})
  endforeach()
  set(headers "")
  while(todo)
    list(POP_FRONT todo header)
    if(NOT header IN_LIST headers AND NOT header STREQUAL "stepforge/base/plugin_build.h")
      list(APPEND headers ${header})
      file(STRINGS ${source_dir}/${header} lines REGEX "^#include \"stepforge/")
      string(REGEX MATCHALL "stepforge/[^\"]+" included "${lines}")
      list(APPEND todo ${included})
    endif()
  endwhile()
  list(SORT headers)
  set(${result} "${headers}" PARENT_SCOPE)
endfunction()

# Writes plugin_build.h for the headers in include_dir; leaves a file that would not change alone, so that nothing is compiled again.
function(stepforge_write_plugin_build source_dir include_dir output)
  file(STRINGS ${source_dir}/CMakeLists.txt version REGEX "^project\\(stepforge VERSION")
  string(REGEX REPLACE ".*VERSION ([0-9.]+).*" "\\1" version "${version}")
  stepforge_public_headers(${source_dir} headers)
  set(hashes "")
  foreach(header ${headers})
    file(SHA256 ${include_dir}/${header} hash)
    string(APPEND hashes "${header} ${hash}\n")
  endforeach()
  string(SHA256 hash "${hashes}")
  string(SUBSTRING ${hash} 0 32 hash)
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT "// SPDX-License-Identifier: Apache-2.0
// Written by cmake/PublicHeaders.cmake: what a plug-in and its program must have in common.
#pragma once

#define STEPFORGE_PLUGIN_VERSION \"${version}\"
#define STEPFORGE_PLUGIN_HEADERS \"${hash}\"
")
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  stepforge_write_plugin_build(${source_dir} ${source_dir} ${output})
  stepforge_public_headers(${source_dir} headers)
  list(TRANSFORM headers PREPEND "${source_dir}/")
  list(JOIN headers " " headers)
  file(WRITE ${depfile} "${output}: ${headers}\n")
endif()
