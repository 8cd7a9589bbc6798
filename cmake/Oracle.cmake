# SPDX-License-Identifier: Apache-2.0
# Programs through which tools/oracle reaches parts of the library, built only when asked for: `make oracle` does.
add_executable(jinja_render EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tools/oracle/jinja_render.cpp)
target_link_libraries(jinja_render PRIVATE sf_text)
add_executable(schedule_dump EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tools/oracle/schedule_dump.cpp)
target_link_libraries(schedule_dump PRIVATE sf_schedule)
