# One static library per torch-free room, one shared library of all of them, the torch half, the program.

# stepforge_room(NAME [USES room...] [LINK target...] [SOURCES GLOB pattern...])
function(stepforge_room name)
  cmake_parse_arguments(ROOM "" "" "USES;LINK;SOURCES" ${ARGN})
  if(ROOM_SOURCES)
    list(REMOVE_ITEM ROOM_SOURCES GLOB)
    file(GLOB sources CONFIGURE_DEPENDS ${ROOM_SOURCES})
  else()
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  endif()
  if(NOT sources)
    return()
  endif()
  add_library(sf_${name} STATIC ${sources})
  target_include_directories(sf_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  foreach(used ${ROOM_USES})
    if(TARGET sf_${used})
      target_link_libraries(sf_${name} PUBLIC sf_${used})
    endif()
  endforeach()
  target_link_libraries(sf_${name} PUBLIC ${ROOM_LINK})
  set_property(GLOBAL APPEND PROPERTY STEPFORGE_ROOMS sf_${name})
  set_property(GLOBAL APPEND PROPERTY STEPFORGE_LIBRARIES ${ROOM_LINK})
endfunction()

# What `stepforge version` says, compiled into one file only.
function(stepforge_version)
  execute_process(COMMAND git rev-parse --short HEAD WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT commit)
    set(commit unknown)
  endif()
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/base/version.cpp PROPERTIES COMPILE_DEFINITIONS
    "STEPFORGE_VERSION=\"${PROJECT_VERSION}\";STEPFORGE_COMMIT=\"${commit}\";STEPFORGE_TORCH_VERSION=\"${TorchWheel_VERSION}\";STEPFORGE_COMPILER=\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\"")
endfunction()

function(stepforge_core)
  get_property(rooms GLOBAL PROPERTY STEPFORGE_ROOMS)
  get_property(libraries GLOBAL PROPERTY STEPFORGE_LIBRARIES)
  list(REMOVE_DUPLICATES libraries)
  add_library(stepforge_core SHARED)
  foreach(room ${rooms})
    target_sources(stepforge_core PRIVATE $<TARGET_OBJECTS:${room}>)
  endforeach()
  target_include_directories(stepforge_core PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>)
  target_compile_features(stepforge_core INTERFACE cxx_std_20)
  target_link_libraries(stepforge_core PRIVATE ${libraries})
  set_target_properties(stepforge_core PROPERTIES LINKER_LANGUAGE CXX BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
endfunction()

function(stepforge_torch_half)
  set(src ${CMAKE_SOURCE_DIR}/src)
  file(GLOB sources CONFIGURE_DEPENDS
    ${src}/engines/*.cpp ${src}/kernels/*.cpp ${src}/kernels/cpu/*.cpp ${src}/nn/*.cpp ${src}/models/*/forward.cpp
    ${src}/models/forwards.cpp ${src}/models/decoder_forward.cpp
    ${src}/parallel/*.cpp ${src}/optim/*.cpp ${src}/checkpoint/*.cpp ${src}/train/*.cpp ${src}/app/torch/*.cpp)
  list(REMOVE_ITEM sources ${src}/optim/schedule.cpp ${src}/train/job_plan.cpp ${src}/train/job_data.cpp)
  if(NOT sources)
    return()
  endif()
  add_library(stepforge_torch SHARED ${sources})
  target_link_libraries(stepforge_torch PUBLIC stepforge_core torch::cpu nlohmann_json::nlohmann_json Threads::Threads)
  target_compile_options(stepforge_torch PRIVATE -fopenmp)
  target_link_options(stepforge_torch PRIVATE -Wl,-z,defs)
  target_precompile_headers(stepforge_torch PRIVATE ${src}/kernels/torch_pch.h)
  # Kernels are vectorised for the machine's instruction sets by function multiversioning, not by -march=native. A square
  # root that may set errno is not vectorised at all; the precompiled header is made without this flag.
  set_source_files_properties(${src}/kernels/cpu/adamw.cpp PROPERTIES
    COMPILE_OPTIONS -fno-math-errno SKIP_PRECOMPILE_HEADERS ON)
  # The header of c10d's Gloo group includes headers of Gloo that no package of PyTorch holds.
  set_source_files_properties(${src}/engines/gloo_links.cpp PROPERTIES
    COMPILE_DEFINITIONS USE_C10D_GLOO INCLUDE_DIRECTORIES ${src}/engines/gloo_declarations)
  set_target_properties(stepforge_torch PROPERTIES BUILD_RPATH "$ORIGIN;${TorchWheel_RPATH}")
endfunction()

function(stepforge_program)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/app/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(stepforge ${sources})
  target_link_libraries(stepforge PRIVATE stepforge_core CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json dl)
  set_target_properties(stepforge PROPERTIES BUILD_RPATH "$ORIGIN")
  if(TARGET stepforge_torch)
    add_dependencies(stepforge stepforge_torch)
  endif()
endfunction()
