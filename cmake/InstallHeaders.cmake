# SPDX-License-Identifier: Apache-2.0
# Installs the public headers, and the one that tells which they are. Run at install time, so that a new include needs no new
# configuration; by hand: cmake -D source_dir=. -D CMAKE_INSTALL_PREFIX=DIR -P cmake/InstallHeaders.cmake
include(${CMAKE_CURRENT_LIST_DIR}/PublicHeaders.cmake)
set(include_dir ${CMAKE_INSTALL_PREFIX}/include)
stepforge_public_headers(${source_dir} headers)
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  file(INSTALL ${source_dir}/${header} DESTINATION ${include_dir}/${folder})
endforeach()
stepforge_write_plugin_build(${source_dir} ${include_dir} ${include_dir}/stepforge/base/plugin_build.h)
