# WAYMARK_SANITIZER for the whole tree, fetched libraries included: a half-instrumented program
# reports races and leaks that are not there.
if(WAYMARK_SANITIZER STREQUAL "address")
  set(flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(WAYMARK_SANITIZER STREQUAL "thread")
  set(flags -fsanitize=thread -fno-omit-frame-pointer)
elseif(NOT WAYMARK_SANITIZER STREQUAL "none")
  message(FATAL_ERROR
    "WAYMARK_SANITIZER must be none, address or thread; it is '${WAYMARK_SANITIZER}'")
endif()
if(NOT WAYMARK_SANITIZER STREQUAL "none")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
  add_link_options(${flags})
  add_compile_definitions(WAYMARK_SANITIZER_${WAYMARK_SANITIZER}=1)
  # g++ cannot instrument atomic_thread_fence and says so in every file that includes the queue.
  if(WAYMARK_SANITIZER STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()

# WAYMARK_BUILD_FUZZERS: what libFuzzer steers by, in the whole tree too. Sets WAYMARK_FUZZERS.
set(WAYMARK_FUZZERS FALSE)
if(WAYMARK_BUILD_FUZZERS)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set(WAYMARK_FUZZERS TRUE)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
  else()
    message(WARNING "WAYMARK_BUILD_FUZZERS needs clang; the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
endif()
