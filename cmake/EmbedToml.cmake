# SPDX-License-Identifier: Apache-2.0
# Ships <folder>/*.toml inside the program: writes <folder>_embedded.inc, rows of {"name", R"toml(text)toml"}.
function(stepforge_embed_toml folder)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.toml)
  set(rows "")
  foreach(file ${files})
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE "\\.toml$" "" name ${name})
    file(READ ${file} text)
    string(APPEND rows "{\"${name}\", R\"toml(${text})toml\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/${folder}_embedded.inc CONTENT "${rows}" @ONLY)
endfunction()

stepforge_embed_toml(presets)
stepforge_embed_toml(machines)
