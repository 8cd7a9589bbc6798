# SPDX-License-Identifier: Apache-2.0
# Run by CTest: adds the tests of one program (Tests.cmake). Reads ROOM, PROGRAM, FOLDER, BY_CASE and TOGETHER.
if(NOT EXISTS ${PROGRAM})
  add_test(${ROOM}_NOT_BUILT ${PROGRAM})
  set_tests_properties(${ROOM}_NOT_BUILT PROPERTIES LABELS fast)
  return()
endif()

# add_filtered(NAME FILTER PROPERTY VALUE...)
function(add_filtered name filter)
  add_test(${ROOM}.${name} ${PROGRAM} --gtest_filter=${filter})
  set_tests_properties(${ROOM}.${name} PROPERTIES WORKING_DIRECTORY ${FOLDER} TIMEOUT 900 ${ARGN})
endfunction()

execute_process(COMMAND ${PROGRAM} --gtest_list_tests WORKING_DIRECTORY ${FOLDER}
  OUTPUT_VARIABLE listed RESULT_VARIABLE failure)
if(failure)
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests: ${failure}\n${listed}")
endif()
string(REGEX REPLACE " *#[^\n]*" "" listed "${listed}")  # values of parameters
string(REGEX MATCHALL "[^\n]+" lines "${listed}")
# Only of one case is it said that it was skipped: of a suite, other cases may have failed.
set(of_case SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
set(suites "")
foreach(line ${lines})
  if(line MATCHES "^([^ ]+)\\.$")  # the cases of this suite follow
    set(suite ${CMAKE_MATCH_1})
  elseif(line MATCHES "^  ([^ ]+)$")
    set(name ${suite}.${CMAKE_MATCH_1})
    if(name MATCHES "LongTest")
      add_filtered(${name} ${name} LABELS long TIMEOUT 3600 ${of_case})
    elseif(BY_CASE AND NOT ";${TOGETHER};" MATCHES ";${suite};")
      add_filtered(${name} ${name} LABELS fast ${of_case})
    else()
      list(APPEND suites ${suite})
    endif()
  endif()
endforeach()
list(REMOVE_DUPLICATES suites)
foreach(suite ${suites})
  # COST: started before single cases, so that none of them runs alone at the end.
  add_filtered(${suite} "${suite}.*-*LongTest*" LABELS fast COST 100)
endforeach()
