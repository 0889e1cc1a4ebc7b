# format-check: clang-format 14 over our sources; also a test where that version is installed.
# tidy: clang-tidy 14 over the sources that this build compiles. Both read only.
# house_check: a test of the rules that no compiler checks (.ci/house_check).
find_program(WAYMARK_CLANG_FORMAT NAMES clang-format-14 clang-format)
find_program(WAYMARK_RUN_CLANG_TIDY NAMES run-clang-tidy-14 run-clang-tidy)
mark_as_advanced(WAYMARK_CLANG_FORMAT WAYMARK_RUN_CLANG_TIDY)

set(has_tests OFF)
if(WAYMARK_BUILD_TESTS AND WAYMARK_SANITIZER STREQUAL "none")
  set(has_tests ON)
endif()
if(has_tests)
  add_test(NAME house_check COMMAND bash "${PROJECT_SOURCE_DIR}/.ci/house_check")
  set_tests_properties(house_check PROPERTIES LABELS unit TIMEOUT 120)
endif()

set(found_version "")
if(WAYMARK_CLANG_FORMAT)
  execute_process(COMMAND "${WAYMARK_CLANG_FORMAT}" --version OUTPUT_VARIABLE found_version)
endif()
if(found_version MATCHES "version 14\\.")
  set(command "${CMAKE_COMMAND}" "-DCLANG_FORMAT=${WAYMARK_CLANG_FORMAT}"
    "-DROOT=${PROJECT_SOURCE_DIR}" -P "${CMAKE_CURRENT_LIST_DIR}/format_check.cmake")
  add_custom_target(format-check COMMAND ${command} VERBATIM)
  if(has_tests)
    add_test(NAME format_check COMMAND ${command})
    set_tests_properties(format_check PROPERTIES LABELS unit TIMEOUT 120)
  endif()
else()
  message(STATUS "Waymark: clang-format 14 not found, no format-check")
endif()

if(WAYMARK_RUN_CLANG_TIDY)
  add_custom_target(tidy
    COMMAND "${WAYMARK_RUN_CLANG_TIDY}" -quiet -p "${PROJECT_BINARY_DIR}"
      "^${PROJECT_SOURCE_DIR}/(kernels|blockstore|plugin|adapters|tests)/"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    USES_TERMINAL VERBATIM)
endif()
