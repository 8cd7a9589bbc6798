# `cmake --install build/release --prefix DIR`: the program, the two libraries, the headers and a CMake package. DIR may be
# moved afterwards. Only libtorch stays where it is.
include(CMakePackageConfigHelpers)
set(package lib/cmake/Stepforge)

set(libraries stepforge_core)
set_target_properties(stepforge_core PROPERTIES EXPORT_NAME core)
set_target_properties(stepforge PROPERTIES EXPORT_NAME program INSTALL_RPATH "$ORIGIN/../lib")
if(TARGET stepforge_torch)
  list(APPEND libraries stepforge_torch)
  set_target_properties(stepforge_torch PROPERTIES EXPORT_NAME stepforge INSTALL_RPATH "$ORIGIN;${TorchWheel_RPATH}")
endif()
install(TARGETS stepforge ${libraries} EXPORT StepforgeTargets
  RUNTIME DESTINATION bin LIBRARY DESTINATION lib INCLUDES DESTINATION include)
if(TARGET stepforge_nccl)
  install(TARGETS stepforge_nccl LIBRARY DESTINATION lib)
endif()
install(EXPORT StepforgeTargets NAMESPACE Stepforge:: DESTINATION ${package})

# Inside the tree a header says "base/error.h", which would meet a base/error.h of its user: installed it says
# "stepforge/base/error.h".
file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/src/*/*.h ${CMAKE_SOURCE_DIR}/src/*/*/*.h)
list(FILTER headers EXCLUDE REGEX "^app/|^engines/nccl/|_pch\\.h$")
if(NOT TARGET stepforge_torch)
  list(FILTER headers INCLUDE REGEX "^(base|config|text|data|tensorfile|metrics|spec|step|comm)/")
endif()
string(REPLACE ";" " " headers "${headers}")
install(CODE "
  foreach(header ${headers})
    get_filename_component(folder \${header} DIRECTORY)
    file(READ \"${CMAKE_SOURCE_DIR}/src/\${header}\" text)
    string(REGEX REPLACE \"#include \\\"([a-z]+/)\" \"#include \\\"stepforge/\\\\1\" text \"\${text}\")
    file(WRITE \"${CMAKE_BINARY_DIR}/installed/\${header}\" \"\${text}\")
    file(INSTALL \"${CMAKE_BINARY_DIR}/installed/\${header}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/include/stepforge/\${folder}\")
  endforeach()")

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/StepforgeConfig.cmake.in ${CMAKE_BINARY_DIR}/StepforgeConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/StepforgeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/StepforgeConfig.cmake ${CMAKE_BINARY_DIR}/StepforgeConfigVersion.cmake
  ${CMAKE_SOURCE_DIR}/cmake/FindTorchWheel.cmake DESTINATION ${package})
