# SPDX-License-Identifier: Apache-2.0
# libstepforge_arrow.so, which reads Parquet and Arrow files, where the libraries of pyarrow are found. Nothing links it: the
# room `records` loads it when a source is such a file.
execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup.sh --print-arrow
  OUTPUT_VARIABLE ArrowWheel_DEFAULT OUTPUT_STRIP_TRAILING_WHITESPACE)
find_package(ArrowWheel 26...<27)
if(NOT ArrowWheel_FOUND)
  message(STATUS "Leaving out the reader of Parquet and Arrow files: run scripts/setup.sh, or set STEPFORGE_ARROW to the 'pyarrow' folder of a pyarrow 26")
  return()
endif()

file(GLOB STEPFORGE_ARROW_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/records/arrow/*.cpp)
add_library(stepforge_arrow MODULE ${STEPFORGE_ARROW_SOURCES})
target_link_libraries(stepforge_arrow PRIVATE stepforge_core arrow::parquet)
if(NOT STEPFORGE_SANITIZE)  # the run time of a sanitizer is in the program
  target_link_options(stepforge_arrow PRIVATE -Wl,-z,defs)
endif()
set_target_properties(stepforge_arrow PROPERTIES BUILD_RPATH "$ORIGIN;${ArrowWheel_ROOT}" INSTALL_RPATH "$ORIGIN;${ArrowWheel_ROOT}")
add_dependencies(stepforge stepforge_arrow)
