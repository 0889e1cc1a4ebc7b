# Run by ctest, see CMakeLists.txt beside it. Fails with the output of the step that failed.
function(run what)
  execute_process(COMMAND ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${output}")
  endif()
  message(STATUS "${what}: done")
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
run("install" "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --config "${CONFIG}"
  --prefix "${WORK_DIR}/prefix")

# The package must not lean on the tree it was built from.
file(GLOB_RECURSE package "${WORK_DIR}/prefix/*.cmake")
foreach(file IN LISTS package)
  file(READ "${file}" content)
  string(FIND "${content}" "${BUILD_DIR}" position)
  if(NOT position EQUAL -1)
    message(FATAL_ERROR "${file} names the build folder ${BUILD_DIR}")
  endif()
endforeach()

run("configure" "${CMAKE_COMMAND}" -C "${INITIAL_CACHE}" -S "${FOREIGN_DIR}" -B "${WORK_DIR}/build"
  -G "${GENERATOR}" "-DCMAKE_BUILD_TYPE=${CONFIG}")
run("build" "${CMAKE_COMMAND}" --build "${WORK_DIR}/build" --config "${CONFIG}")
run("run" "${WORK_DIR}/build/foreign")

# The same without CMake, where there is pkg-config.
find_program(PKG_CONFIG pkg-config)
file(GLOB found "${WORK_DIR}/prefix/lib*/pkgconfig" "${WORK_DIR}/prefix/lib/*/pkgconfig")
if(PKG_CONFIG AND found AND EXISTS "${FOREIGN_DIR}/main.c")
  run("pkg-config" sh -c "export PKG_CONFIG_PATH='${found}'
    cc '${FOREIGN_DIR}/main.c' -o '${WORK_DIR}/plain' $(pkg-config --cflags --libs waymark) \\
      -Wl,-rpath,$(pkg-config --variable=libdir waymark)")
  run("run" "${WORK_DIR}/plain")
endif()
