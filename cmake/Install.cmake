# SPDX-License-Identifier: Apache-2.0
# `cmake --install build/release --prefix DIR`: the program, the two libraries, the headers and a CMake package. DIR may be
# moved afterwards. Only libtorch and Arrow stay where they are.
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
if(TARGET stepforge_arrow)
  install(TARGETS stepforge_arrow LIBRARY DESTINATION lib)
endif()
if(TARGET stepforge_cuda)  # where `make cuda` has built it
  set_target_properties(stepforge_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;${TorchWheel_RPATH}")
  install(TARGETS stepforge_cuda LIBRARY DESTINATION lib OPTIONAL)
endif()
install(EXPORT StepforgeTargets NAMESPACE Stepforge:: DESTINATION ${package})

install(CODE "set(source_dir ${CMAKE_SOURCE_DIR})")
install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/InstallHeaders.cmake)

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/StepforgeConfig.cmake.in ${CMAKE_BINARY_DIR}/StepforgeConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/StepforgeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/StepforgeConfig.cmake ${CMAKE_BINARY_DIR}/StepforgeConfigVersion.cmake
  ${CMAKE_SOURCE_DIR}/cmake/FindTorchWheel.cmake DESTINATION ${package})
