# SPDX-License-Identifier: Apache-2.0
# Ships presets/*.toml inside the program: writes presets_embedded.inc, rows of {"name", R"toml(text)toml"}.
file(GLOB presets CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/presets/*.toml)
set(rows "")
foreach(preset ${presets})
  get_filename_component(name ${preset} NAME)
  string(REGEX REPLACE "\\.toml$" "" name ${name})
  file(READ ${preset} text)
  string(APPEND rows "{\"${name}\", R\"toml(${text})toml\"},\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${preset})
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/presets_embedded.inc CONTENT "${rows}" @ONLY)
