# Libraries from outside: those installed, else a pinned download (WAYMARK_DEPS).
#
# What each is for and how its pin was verified: docs/decisions/0001-dependencies.md. Without a
# network: -DFETCHCONTENT_SOURCE_DIR_<NAME>=<unpacked sources>, with the names declared below.
include(FetchContent)

if(NOT WAYMARK_DEPS MATCHES "^(auto|system|fetch)$")
  message(FATAL_ERROR "WAYMARK_DEPS must be auto, system or fetch; it is '${WAYMARK_DEPS}'")
endif()

set(debian https://deb.debian.org/debian/pool/main)
FetchContent_Declare(absl SYSTEM
  URL https://github.com/abseil/abseil-cpp/releases/download/20240722.0/abseil-cpp-20240722.0.tar.gz
  URL_HASH SHA256=f50e5ac311a81382da7fa75b97310e4b9006474f9560ac46f54a9967f07d4ae3
  DOWNLOAD_EXTRACT_TIMESTAMP OFF)
FetchContent_Declare(xxhash SYSTEM
  URL https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.1.tar.gz
    ${debian}/x/xxhash/xxhash_0.8.1.orig.tar.gz
  URL_HASH SHA256=3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c
  DOWNLOAD_EXTRACT_TIMESTAMP OFF SOURCE_SUBDIR no-cmake)
FetchContent_Declare(concurrentqueue SYSTEM
  URL https://github.com/cameron314/concurrentqueue/archive/refs/tags/v1.0.3.tar.gz
  URL_HASH SHA256=eb37336bf9ae59aca7b954db3350d9b30d1cab24b96c7676f36040aa76e915e8
  DOWNLOAD_EXTRACT_TIMESTAMP OFF SOURCE_SUBDIR no-cmake)
FetchContent_Declare(cli11 SYSTEM
  URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.1.2.tar.gz
  URL_HASH SHA256=26291377e892ba0e5b4972cdfd4a2ab3bf53af8dac1f4ea8fe0d1376b625c8cb
  DOWNLOAD_EXTRACT_TIMESTAMP OFF SOURCE_SUBDIR no-cmake)
FetchContent_Declare(nlohmann_json SYSTEM
  URL https://github.com/nlohmann/json/archive/refs/tags/v3.11.3.tar.gz
    ${debian}/n/nlohmann-json3/nlohmann-json3_3.11.3.orig.tar.gz
  URL_HASH SHA256=0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406
  DOWNLOAD_EXTRACT_TIMESTAMP OFF SOURCE_SUBDIR no-cmake)
FetchContent_Declare(googletest SYSTEM
  URL https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz
    ${debian}/g/googletest/googletest_1.12.1.orig.tar.gz
  URL_HASH SHA256=81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2
  DOWNLOAD_EXTRACT_TIMESTAMP OFF)
FetchContent_Declare(benchmark SYSTEM
  URL https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz
    ${debian}/b/benchmark/benchmark_1.7.1.orig.tar.gz
  URL_HASH SHA256=6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7
  DOWNLOAD_EXTRACT_TIMESTAMP OFF)

# Makes one library's sources available and says so. A function, so that what it sets for the
# library's own build stays with that build.
function(waymark_fetch name)
  string(TOUPPER "${name}" upper)
  set(sources "${FETCHCONTENT_SOURCE_DIR_${upper}}")
  if(NOT sources)
    set(sources "the pinned download: it is not installed here, or not wanted (.ci/setup has it)")
  endif()
  message(STATUS "Waymark: ${name} from ${sources}")
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(BUILD_TESTING OFF)
  set(CMAKE_UNITY_BUILD OFF)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG") # -O3 takes half as long again
  set(ABSL_PROPAGATE_CXX_STD ON)
  set(ABSL_ENABLE_INSTALL "${WAYMARK_INSTALL}")
  set(INSTALL_GTEST OFF)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  set(BENCHMARK_ENABLE_WERROR OFF)
  FetchContent_MakeAvailable(${name})
  set(${name}_SOURCE_DIR "${${name}_SOURCE_DIR}" PARENT_SCOPE)
endfunction()

# Sets <package>_USABLE, true when the target is there or an installed package gives it.
macro(waymark_find package target)
  set(${package}_USABLE FALSE)
  if(NOT TARGET ${target} AND NOT WAYMARK_DEPS STREQUAL "fetch")
    if(WAYMARK_DEPS STREQUAL "system")
      find_package(${package} REQUIRED)
    else()
      find_package(${package} QUIET)
    endif()
  endif()
  if(TARGET ${target})
    set(${package}_USABLE TRUE)
  endif()
endmacro()

# A header-only library: `target` gets the folder of `header`, found in the system (`suffixes` are
# tried below the include folders) or in the sources that `name` declares, below `below`.
function(waymark_header_only target name header below)
  set(variable "WAYMARK_${name}_INCLUDE_DIR")
  if(NOT WAYMARK_DEPS STREQUAL "fetch")
    find_path(${variable} "${header}" PATH_SUFFIXES ${ARGN})
    mark_as_advanced(${variable})
  endif()
  if(${variable} AND NOT WAYMARK_DEPS STREQUAL "fetch")
    set(folder "${${variable}}")
  elseif(WAYMARK_DEPS STREQUAL "system")
    message(FATAL_ERROR
      "WAYMARK_DEPS=system, and ${header} is not installed (.ci/setup installs it)")
  else()
    waymark_fetch(${name})
    set(folder "${${name}_SOURCE_DIR}${below}")
  endif()
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE "${folder}")
endfunction()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# What must stand alone takes Abseil from source: Debian's static archives are not position-
# independent. .ci/setup unpacks Debian's source package there, and an sdist carries it. Four
# compilations instead of the 88 of Abseil's own build, a tenth of the time.
set(abseil "${PROJECT_SOURCE_DIR}/build/sources/abseil")
set(absl_USABLE FALSE)
if(NOT WAYMARK_STANDALONE)
  waymark_find(absl absl::statusor)
elseif(NOT FETCHCONTENT_SOURCE_DIR_ABSL AND EXISTS "${abseil}/absl")
  set(folders base container debugging hash numeric profiling status strings synchronization time
    types)
  list(TRANSFORM folders REPLACE "(.+)" "${abseil}/absl/\\1/*.cc")
  file(GLOB_RECURSE sources ${folders})
  list(FILTER sources EXCLUDE REGEX
    "/[^/]*(test|benchmark|print_hash_of|pow10_helper|set_env|stack_consumption)[^/]*$")
  # Local names that another file has, too.
  set(alone strings/numbers.cc time/time.cc time/internal/cctz/src/time_zone_posix.cc)
  list(TRANSFORM alone PREPEND "${abseil}/absl/")
  set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(waymark_absl STATIC ${sources})
  target_compile_features(waymark_absl PUBLIC cxx_std_20)
  target_compile_options(waymark_absl PRIVATE -O1 -w)
  target_include_directories(waymark_absl SYSTEM PUBLIC "${abseil}")
  target_link_libraries(waymark_absl PUBLIC Threads::Threads)
  set_target_properties(waymark_absl PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON
    UNITY_BUILD ON
    UNITY_BUILD_BATCH_SIZE 90
    VISIBILITY_INLINES_HIDDEN ON)
  foreach(name IN ITEMS core_headers flat_hash_map flat_hash_set function_ref hash inlined_vector
      span status statusor str_format strings)
    add_library(absl::${name} ALIAS waymark_absl)
  endforeach()
  set(absl_USABLE TRUE)
endif()
if(NOT absl_USABLE)
  waymark_fetch(absl)
endif()

# The compiled library is not used: hashing inlines, and nothing is left for users to link.
waymark_header_only(waymark_xxhash xxhash xxhash.h "")
target_compile_definitions(waymark_xxhash INTERFACE XXH_INLINE_ALL)

# Debian keeps the header one folder below the include folder, upstream's own install two.
waymark_header_only(waymark_concurrentqueue concurrentqueue concurrentqueue.h ""
  concurrentqueue concurrentqueue/moodycamel)

waymark_find(nlohmann_json nlohmann_json::nlohmann_json)
if(NOT nlohmann_json_USABLE)
  waymark_header_only(waymark_json nlohmann_json nlohmann/json.hpp /include)
  add_library(nlohmann_json::nlohmann_json ALIAS waymark_json)
endif()

if(WAYMARK_BUILD_TOOLS OR WAYMARK_BUILD_TESTS)
  waymark_find(CLI11 CLI11::CLI11)
  if(NOT CLI11_USABLE)
    waymark_header_only(waymark_cli11 cli11 CLI/CLI.hpp /include)
    add_library(CLI11::CLI11 ALIAS waymark_cli11)
  endif()
endif()

if(WAYMARK_BUILD_TESTS)
  waymark_find(GTest GTest::gmock_main)
  if(NOT GTest_USABLE)
    waymark_fetch(googletest)
  endif()
  include(GoogleTest)
endif()

if(WAYMARK_BUILD_BENCHMARKS)
  waymark_find(benchmark benchmark::benchmark_main)
  if(NOT benchmark_USABLE)
    waymark_fetch(benchmark)
  endif()
endif()
