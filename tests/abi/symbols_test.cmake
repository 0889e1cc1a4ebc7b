# cmake -DNM=... -DLIBRARY=... -DGOLDEN=... -P symbols_test.cmake: the library exports exactly the
# symbols listed.
execute_process(COMMAND "${NM}" -D --defined-only --format=posix "${LIBRARY}"
  OUTPUT_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${NM} failed on ${LIBRARY}")
endif()
string(REGEX REPLACE " [^\n]*" "" symbols "${output}")
file(READ "${GOLDEN}" golden)
if(NOT symbols STREQUAL golden)
  message(FATAL_ERROR "${LIBRARY} must export\n${golden}and exports\n${symbols}")
endif()
