# SPDX-License-Identifier: Apache-2.0
# libstepforge_sim.so, the simulated devices. Only builds with tests have it, and it is not installed.
if(NOT STEPFORGE_TESTS OR STEPFORGE_FUZZ)
  return()
endif()
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stepforge/sim/*.cpp)
add_library(stepforge_sim SHARED ${sources})
target_link_libraries(stepforge_sim PUBLIC stepforge_torch)
target_link_options(stepforge_sim PRIVATE -Wl,-z,defs)
set_target_properties(stepforge_sim PROPERTIES BUILD_RPATH "$ORIGIN;${TorchWheel_RPATH}")
add_dependencies(stepforge stepforge_sim)
