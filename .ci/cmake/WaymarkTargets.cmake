# What a folder's CMakeLists.txt uses to declare its targets. Sources are listed by name.
#
#   waymark_library(blockstore
#     PUBLIC_HEADERS ids.h store.h          # installed
#     SOURCES store.cc internal.h           # no .cc: a header-only library
#     PUBLIC_LIBS absl::status              # what public headers include
#     PRIVATE_LIBS waymark_xxhash Threads::Threads)
#
# makes the static library waymark_blockstore (position-independent, hidden visibility, warnings),
# its alias waymark::blockstore, its install rules and its header check. Includes are relative to
# the root of the repository, in the build and after installation: "blockstore/store/store.h". Every
# header named in either list must compile on its own (target waymark_header_check, part of a plain
# build with tests).
# NO_INSTALL keeps a library out of the installation; nothing installed may then link it.
#
#   waymark_executable(waymark_bench SOURCES bench.cc LIBS waymark::blockstore benchmark::benchmark)
#   waymark_executable(waymark SOURCES main.cc LIBS waymark::plugin CLI11::CLI11 INSTALL)
#
#   waymark_test(store_test
#     SOURCES store_test.cc
#     LIBS waymark::blockstore
#     LABELS unit                           # unit stress conformance abi gpu install; default unit
#     TIMEOUT 120                           # seconds a case; default 120; x5 under a sanitizer;
#                                           # ctest begins with those that have the longest
#     DEFINITIONS WAYMARK_FAULT_X=1         # for this program only
#     ENVIRONMENT NAME=value
#     PROPERTIES RUN_SERIAL ON              # further test properties
#     NO_THREADS                            # threads are not what it tests: under a sanitizer,
#                                           # AddressSanitizer's, and otherwise ThreadSanitizer's,
#                                           # unless WAYMARK_EVERY_TEST
#     WHOLE)                                # one ctest entry instead of one for each test case, as
#                                           # every test has under a sanitizer
#
# links GoogleTest and gmock with their main (NO_MAIN: the sources have their own). In ctest a case
# is named <program>.<Suite>.<Case>.
#
# The presets demo, ci, asan and tsan, and the wheel, compile the sources of a target together
# (CMAKE_UNITY_BUILD): a fourth of the work. A source with local names that another of its target has
# too is kept out by SKIP_UNITY_BUILD_INCLUSION in its folder's CMakeLists.txt. A new one that needs it
# fails there with "redefinition", but for a function with other parameters, which then is an overload
# in the other source: nothing says so where a call fits it better.
#
# Targets from outside: absl::*, GTest::gmock, benchmark::benchmark, benchmark::benchmark_main,
# CLI11::CLI11, nlohmann_json::nlohmann_json, Threads::Threads, and two header-only ones made here:
# waymark_xxhash (<xxhash.h>, inline) and waymark_concurrentqueue (<concurrentqueue.h>). Where CUDA
# is found, CUDA::cudart_static too.
include_guard(GLOBAL)
include(GNUInstallDirs)

set(WAYMARK_HEADER_DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/waymark")
# A wheel has a folder of its own for programs; pip puts them on PATH.
set(WAYMARK_TOOL_DESTINATION "${CMAKE_INSTALL_BINDIR}")
if(SKBUILD)
  set(WAYMARK_TOOL_DESTINATION "${SKBUILD_SCRIPTS_DIR}")
endif()

# Warnings, language level and visibility of everything that is ours.
function(waymark_target_defaults target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    CUDA_STANDARD 20
    CUDA_EXTENSIONS OFF
    CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  # Designated initialisers leave members out on purpose; g++ 12 warns all the same.
  set(warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    list(APPEND warnings -Wthread-safety)
  elseif(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 sees overlaps inside std::string's own operator+ that are not there.
    list(APPEND warnings -Wno-restrict)
  endif()
  # Files that are compiled as one share their anonymous namespaces; `dev` compiles each by itself.
  if(CMAKE_UNITY_BUILD)
    list(APPEND warnings -Wno-shadow)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      list(APPEND warnings -Wno-subobject-linkage)
      # g++ collects garbage only above 1 GB, which takes a tenth less time.
      target_compile_options(${target} PRIVATE
        "$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>")
    endif()
  endif()
  if(WAYMARK_WERROR)
    list(APPEND warnings -Werror)
  elseif(CMAKE_UNITY_BUILD)
    list(APPEND warnings -w)  # nobody reads them; warnings cost time
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
  set(cuda_warnings -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers)
  if(WAYMARK_WERROR)
    list(APPEND cuda_warnings -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings}>")
endfunction()

# What most sources include, compiled once where many are compiled together. Not where warnings are
# errors: g++ 12 takes it for no system's header then, and warns of it.
if(CMAKE_UNITY_BUILD AND NOT WAYMARK_WERROR)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/common_headers.cc" CONTENT "")
  add_library(waymark_common_headers OBJECT EXCLUDE_FROM_ALL
    "${PROJECT_BINARY_DIR}/common_headers.cc")
  waymark_target_defaults(waymark_common_headers)
  target_link_libraries(waymark_common_headers PRIVATE absl::statusor absl::strings)
  target_precompile_headers(waymark_common_headers PRIVATE
    <algorithm> <array> <atomic> <chrono> <functional> <memory> <mutex> <optional> <span> <string>
    <string_view> <thread> <unordered_map> <utility> <vector>
    <absl/status/statusor.h> <absl/strings/str_cat.h>)
endif()

# One generated source a header, which includes it first and twice. Not optimised: nobody runs it. A
# header that its own .cc includes first is checked there, where files are compiled one by one.
function(waymark_header_check name library)
  set(sources)
  foreach(header IN LISTS ARGN)
    cmake_path(NORMAL_PATH header)
    cmake_path(REPLACE_EXTENSION header LAST_ONLY cc OUTPUT_VARIABLE own)
    if(EXISTS "${PROJECT_SOURCE_DIR}/${own}" AND NOT CMAKE_UNITY_BUILD)
      file(STRINGS "${PROJECT_SOURCE_DIR}/${own}" first LIMIT_COUNT 1 REGEX "^#include ")
      if(first STREQUAL "#include \"${header}\"")
        continue()
      endif()
    endif()
    set(source "${PROJECT_BINARY_DIR}/header_check/${header}.cc")
    file(CONFIGURE OUTPUT "${source}"
      CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  if(NOT sources)
    return()
  endif()
  set(exclude)
  if(NOT WAYMARK_BUILD_TESTS)
    set(exclude EXCLUDE_FROM_ALL)
  endif()
  add_library(waymark_header_check_${name} OBJECT ${exclude} ${sources})
  target_link_libraries(waymark_header_check_${name} PRIVATE ${library})
  waymark_target_defaults(waymark_header_check_${name})
  target_compile_options(waymark_header_check_${name} PRIVATE -O0 -g0)
  set_target_properties(waymark_header_check_${name} PROPERTIES UNITY_BUILD OFF)
  if(NOT TARGET waymark_header_check)
    add_custom_target(waymark_header_check)
  endif()
  add_dependencies(waymark_header_check waymark_header_check_${name})
endfunction()

function(waymark_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_INSTALL" ""
    "PUBLIC_HEADERS;SOURCES;PUBLIC_LIBS;PRIVATE_LIBS")
  if(DEFINED arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "waymark_library(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target waymark_${name})
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")

  # Header-only libraries from outside leave no trace in the installed package.
  set(private_libs)
  foreach(lib IN LISTS arg_PRIVATE_LIBS)
    if(lib MATCHES "^(waymark_xxhash|waymark_concurrentqueue|nlohmann_json::.*|CLI11::.*)$")
      set(lib "$<BUILD_INTERFACE:${lib}>")
    endif()
    list(APPEND private_libs "${lib}")
  endforeach()

  set(implementations ${arg_SOURCES})
  list(FILTER implementations EXCLUDE REGEX "\\.h$")
  if(implementations)
    add_library(${target} STATIC ${arg_SOURCES})
    waymark_target_defaults(${target})
    set(scope PUBLIC)
    target_link_libraries(${target} PUBLIC ${arg_PUBLIC_LIBS} PRIVATE ${private_libs})
    if(TARGET waymark_common_headers AND NOT folder STREQUAL "kernels")
      target_precompile_headers(${target} REUSE_FROM waymark_common_headers)
    endif()
  else()
    add_library(${target} INTERFACE)
    target_compile_features(${target} INTERFACE cxx_std_20)
    set(scope INTERFACE)
    target_link_libraries(${target} INTERFACE ${arg_PUBLIC_LIBS} ${private_libs})
  endif()
  add_library(waymark::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name} WAYMARK_PUBLIC_HEADERS "${arg_PUBLIC_HEADERS}")
  if(NOT WAYMARK_SANITIZER STREQUAL "none")  # what no test of it needs is not built
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  target_include_directories(${target} ${scope}
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")

  set(headers ${arg_PUBLIC_HEADERS} ${arg_SOURCES})
  list(FILTER headers INCLUDE REGEX "\\.h$")
  if(WAYMARK_BUILD_TESTS AND WAYMARK_SANITIZER STREQUAL "none" AND headers)
    list(TRANSFORM headers PREPEND "${folder}/")
    waymark_header_check(${name} ${target} ${headers})
    if(TARGET waymark_header_check_${name})
      # Internal headers may use what only the implementation links.
      target_link_libraries(waymark_header_check_${name} PRIVATE ${arg_PRIVATE_LIBS})
    endif()
  endif()
  if(WAYMARK_INSTALL AND NOT arg_NO_INSTALL AND NOT WAYMARK_STANDALONE)
    install(TARGETS ${target}
      EXPORT waymark-targets
      ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    set_property(GLOBAL APPEND PROPERTY WAYMARK_INSTALLED_LIBRARIES ${name})
    set_property(GLOBAL APPEND PROPERTY WAYMARK_INSTALLED_LINKS ${arg_PUBLIC_LIBS} ${private_libs})
    foreach(header IN LISTS arg_PUBLIC_HEADERS)
      cmake_path(GET header PARENT_PATH parent)
      install(FILES "${header}" DESTINATION "${WAYMARK_HEADER_DESTINATION}/${folder}/${parent}")
      set_property(GLOBAL APPEND PROPERTY WAYMARK_INSTALLED_HEADERS_${name} "${folder}/${header}")
    endforeach()
  endif()
endfunction()

function(waymark_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INSTALL" "" "SOURCES;LIBS;DEFINITIONS")
  if(DEFINED arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "waymark_executable(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_executable(${name} ${arg_SOURCES})
  waymark_target_defaults(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  target_compile_definitions(${name} PRIVATE ${arg_DEFINITIONS})
  if(arg_INSTALL AND WAYMARK_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION "${WAYMARK_TOOL_DESTINATION}" COMPONENT tool)
  endif()
endfunction()

function(waymark_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAIN;NO_THREADS;WHOLE" "TIMEOUT"
    "SOURCES;LIBS;LABELS;DEFINITIONS;ENVIRONMENT;PROPERTIES")
  if(DEFINED arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "waymark_test(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT WAYMARK_BUILD_TESTS)
    return()
  endif()
  if(NOT WAYMARK_EVERY_TEST AND ((arg_NO_THREADS AND WAYMARK_SANITIZER STREQUAL "thread")
      OR (NOT arg_NO_THREADS AND WAYMARK_SANITIZER STREQUAL "address")))
    return()
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  foreach(label IN LISTS arg_LABELS)
    if(NOT label MATCHES "^(unit|stress|conformance|abi|gpu|install|fuzz|python|bench)$")
      message(FATAL_ERROR "waymark_test(${name}): unknown label '${label}'")
    endif()
  endforeach()
  list(APPEND arg_ENVIRONMENT WAYMARK_LOG=off)  # they lose rows on purpose
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT WAYMARK_SANITIZER STREQUAL "none")
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 5")
  endif()
  waymark_executable(${name} SOURCES ${arg_SOURCES} LIBS ${arg_LIBS}
    DEFINITIONS ${arg_DEFINITIONS})
  if(arg_NO_MAIN)
    target_link_libraries(${name} PRIVATE GTest::gmock)
  else()
    target_link_libraries(${name} PRIVATE GTest::gmock_main)
  endif()
  if(TARGET waymark_test_headers)
    target_precompile_headers(${name} REUSE_FROM waymark_test_headers)
  endif()

  # Under a sanitizer a process takes longer to begin than most cases do.
  if(arg_WHOLE OR NOT WAYMARK_SANITIZER STREQUAL "none")
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES
      LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT}
      ENVIRONMENT "${arg_ENVIRONMENT}" ${arg_PROPERTIES})
    return()
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 120)
  # Properties that are lists do not survive the module's own PROPERTIES; ctest reads this file
  # after the module's, when <name>_TESTS holds the names of the cases.
  set(properties "${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake")
  file(CONFIGURE OUTPUT "${properties}" @ONLY CONTENT [[
if(DEFINED @name@_TESTS)
  set_tests_properties(${@name@_TESTS} PROPERTIES
    LABELS "@arg_LABELS@" TIMEOUT @arg_TIMEOUT@ COST @arg_TIMEOUT@
    ENVIRONMENT "@arg_ENVIRONMENT@" @arg_PROPERTIES@)
endif()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${properties}")
endfunction()
