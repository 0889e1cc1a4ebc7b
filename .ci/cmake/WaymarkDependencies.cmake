# Libraries from outside: find_package first, then a pinned download (WAYMARK_DEPS).
# What each is for, and how its pin was verified: docs/decisions/0001-dependencies.md.
if(NOT WAYMARK_DEPS MATCHES "^(auto|system|fetch)$")
  message(FATAL_ERROR "WAYMARK_DEPS must be auto, system or fetch; it is '${WAYMARK_DEPS}'")
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
if(WAYMARK_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
if(WAYMARK_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()

# Neither has a CMake package on Debian. The queue's header lies one or two folders deep, by who
# packaged it: the target's include folder is where the header is.
find_path(WAYMARK_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
add_library(waymark_xxhash INTERFACE)
target_include_directories(waymark_xxhash SYSTEM INTERFACE "${WAYMARK_XXHASH_INCLUDE_DIR}")
target_compile_definitions(waymark_xxhash INTERFACE XXH_INLINE_ALL)

find_path(WAYMARK_CONCURRENTQUEUE_INCLUDE_DIR concurrentqueue.h
  PATH_SUFFIXES concurrentqueue concurrentqueue/moodycamel REQUIRED)
add_library(waymark_concurrentqueue INTERFACE)
target_include_directories(waymark_concurrentqueue SYSTEM INTERFACE
  "${WAYMARK_CONCURRENTQUEUE_INCLUDE_DIR}")
