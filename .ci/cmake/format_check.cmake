# cmake -DCLANG_FORMAT=... -DROOT=... -P format_check.cmake: fails where formatting would change.
set(files)
foreach(folder IN ITEMS kernels blockstore plugin adapters tests)
  foreach(extension IN ITEMS h c cc cu cuh)
    file(GLOB_RECURSE found "${ROOT}/${folder}/*.${extension}")
    list(APPEND files ${found})
  endforeach()
endforeach()
if(NOT files)
  return()
endif()
execute_process(
  COMMAND "${CLANG_FORMAT}" --style=file --dry-run -Werror ${files}
  WORKING_DIRECTORY "${ROOT}"
  ERROR_VARIABLE complaints
  RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  string(REGEX MATCHALL "[^\n]*error: code should be clang-formatted" lines "${complaints}")
  list(TRANSFORM lines REPLACE ":.*" "")
  list(REMOVE_DUPLICATES lines)
  list(JOIN lines "\n  " listed)
  message(FATAL_ERROR
    "not formatted (run clang-format-14 -i on them):\n  ${listed}")
endif()
