# SPDX-License-Identifier: Apache-2.0
# Finds the C++ libraries of Arrow and Parquet inside an installed pyarrow, without Python. Looks at STEPFORGE_ARROW (cache
# variable or environment), then at ArrowWheel_DEFAULT. Defines arrow::parquet, which brings libarrow, ArrowWheel_VERSION and
# ArrowWheel_ROOT. The wheel's libraries have only names with a version, such as libarrow.so.2600.
set(STEPFORGE_ARROW "$ENV{STEPFORGE_ARROW}" CACHE PATH "The 'pyarrow' folder of an installed pyarrow")
set(ArrowWheel_ROOT "${STEPFORGE_ARROW}")
if(NOT ArrowWheel_ROOT)
  set(ArrowWheel_ROOT "${ArrowWheel_DEFAULT}")
endif()

set(ArrowWheel_VERSION "")
if(EXISTS ${ArrowWheel_ROOT}/include/arrow/util/config.h)
  file(STRINGS ${ArrowWheel_ROOT}/include/arrow/util/config.h version_line REGEX "ARROW_VERSION_STRING")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" ArrowWheel_VERSION "${version_line}")
endif()
foreach(library arrow parquet)
  file(GLOB ArrowWheel_${library} ${ArrowWheel_ROOT}/lib${library}.so.*)
  list(SORT ArrowWheel_${library})
  list(LENGTH ArrowWheel_${library} count)
  if(count GREATER 1)  # libarrow.so.2600 may have a copy, libarrow.so.2600.1.0
    list(GET ArrowWheel_${library} 0 ArrowWheel_${library})
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ArrowWheel
  REQUIRED_VARS ArrowWheel_ROOT ArrowWheel_VERSION ArrowWheel_arrow ArrowWheel_parquet
  VERSION_VAR ArrowWheel_VERSION
  HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE "looked at '${ArrowWheel_ROOT}'")

if(ArrowWheel_FOUND AND NOT TARGET arrow::parquet)
  foreach(library arrow parquet)
    add_library(arrow::${library} SHARED IMPORTED)
    set_target_properties(arrow::${library} PROPERTIES
      IMPORTED_LOCATION ${ArrowWheel_${library}}
      INTERFACE_INCLUDE_DIRECTORIES ${ArrowWheel_ROOT}/include)
  endforeach()
  set_target_properties(arrow::parquet PROPERTIES INTERFACE_LINK_LIBRARIES arrow::arrow)
endif()
