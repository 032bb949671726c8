# heddle_library(NAME core SOURCES a.cpp ... LIBS heddle::x ...) -> static library heddle_core,
# alias heddle::core, warnings on, includes written from the repository root.
function(heddle_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  if(ARG_SOURCES)
    add_library(heddle_${ARG_NAME} STATIC ${ARG_SOURCES})
    target_link_libraries(heddle_${ARG_NAME} PUBLIC ${ARG_LIBS} PRIVATE heddle_warnings ${ARG_PRIVATE_LIBS})
    target_include_directories(heddle_${ARG_NAME} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  else()
    add_library(heddle_${ARG_NAME} INTERFACE)
    target_link_libraries(heddle_${ARG_NAME} INTERFACE ${ARG_LIBS})
    target_include_directories(heddle_${ARG_NAME} INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  endif()
  add_library(heddle::${ARG_NAME} ALIAS heddle_${ARG_NAME})
endfunction()

# heddle_test(NAME test_x SOURCES ... LIBS ... [LABELS unit] [TIMEOUT s]): a GoogleTest binary, one
# ctest entry. Tests find the source tree through HEDDLE_SOURCE_DIR and the build through HEDDLE_BINARY_DIR.
function(heddle_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main
                                            heddle_warnings)
  target_include_directories(${ARG_NAME} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_compile_definitions(${ARG_NAME} PRIVATE HEDDLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                                 HEDDLE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
