# Finds hiredis, the client library of RedisSource, where it is wanted (WAYMARK_REDIS): the
# system's, or, in what must stand alone, the sources that .ci/setup unpacked and an sdist carries.
#
# Sets WAYMARK_REDIS_FOUND, and WAYMARK_REDIS_TLS where it has TLS (hiredis 1.0 and hiredis_ssl).
# WAYMARK_HIREDIS_LIBS is what to link: by path here, by name where Waymark was installed.
set(WAYMARK_REDIS_FOUND FALSE)
set(WAYMARK_REDIS_TLS FALSE)
if(NOT WAYMARK_REDIS MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "WAYMARK_REDIS must be AUTO, ON or OFF; it is '${WAYMARK_REDIS}'")
endif()
if(WAYMARK_REDIS STREQUAL "OFF")
  message(STATUS "Waymark: Redis off")
  return()
endif()

if(WAYMARK_STANDALONE)
  set(sources "${PROJECT_SOURCE_DIR}/build/sources/hiredis")
  if(NOT EXISTS "${sources}/hiredis.c")
    if(WAYMARK_REDIS STREQUAL "ON")
      message(FATAL_ERROR
        "WAYMARK_REDIS=ON, and build/sources/hiredis is not there (.ci/setup unpacks it)")
    endif()
    message(STATUS "Waymark: no sources of hiredis, building without Redis")
    return()
  endif()
  # Without its TLS, which would need an OpenSSL to stand alone with.
  enable_language(C)
  add_library(waymark_hiredis STATIC
    "${sources}/alloc.c"
    "${sources}/async.c"
    "${sources}/hiredis.c"
    "${sources}/net.c"
    "${sources}/read.c"
    "${sources}/sds.c")
  target_compile_options(waymark_hiredis PRIVATE -w)
  set_target_properties(waymark_hiredis PROPERTIES
    C_VISIBILITY_PRESET hidden
    UNITY_BUILD OFF
    POSITION_INDEPENDENT_CODE ON)
  set(WAYMARK_REDIS_FOUND TRUE)
  set(WAYMARK_HIREDIS_INCLUDE_DIR "${PROJECT_SOURCE_DIR}/build/sources")
  set(WAYMARK_HIREDIS_LIBS "$<BUILD_INTERFACE:waymark_hiredis>" "$<INSTALL_INTERFACE:hiredis>")
  message(STATUS "Waymark: Redis by ${sources}, without TLS")
  return()
endif()

find_path(WAYMARK_HIREDIS_INCLUDE_DIR hiredis/hiredis.h)
find_library(WAYMARK_HIREDIS_LIBRARY hiredis)
find_library(WAYMARK_HIREDIS_SSL_LIBRARY hiredis_ssl)
mark_as_advanced(
  WAYMARK_HIREDIS_INCLUDE_DIR WAYMARK_HIREDIS_LIBRARY WAYMARK_HIREDIS_SSL_LIBRARY)
if(NOT WAYMARK_HIREDIS_INCLUDE_DIR OR NOT WAYMARK_HIREDIS_LIBRARY)
  if(WAYMARK_REDIS STREQUAL "ON")
    message(FATAL_ERROR
      "WAYMARK_REDIS=ON, and hiredis was not found (Debian: libhiredis-dev; .ci/setup installs it)")
  endif()
  message(STATUS "Waymark: hiredis not found, building without Redis")
  return()
endif()
set(WAYMARK_REDIS_FOUND TRUE)
set(WAYMARK_HIREDIS_LIBS
  "$<BUILD_INTERFACE:${WAYMARK_HIREDIS_LIBRARY}>" "$<INSTALL_INTERFACE:hiredis>")
if(WAYMARK_HIREDIS_SSL_LIBRARY
    AND EXISTS "${WAYMARK_HIREDIS_INCLUDE_DIR}/hiredis/hiredis_ssl.h")
  find_package(OpenSSL QUIET)
  if(OPENSSL_FOUND)
    set(WAYMARK_REDIS_TLS TRUE)
    list(PREPEND WAYMARK_HIREDIS_LIBS
      "$<BUILD_INTERFACE:${WAYMARK_HIREDIS_SSL_LIBRARY}>" "$<INSTALL_INTERFACE:hiredis_ssl>")
    list(APPEND WAYMARK_HIREDIS_LIBS
      "$<BUILD_INTERFACE:OpenSSL::SSL>" "$<INSTALL_INTERFACE:ssl;crypto>")
  endif()
endif()
message(STATUS "Waymark: Redis by ${WAYMARK_HIREDIS_LIBRARY}, TLS ${WAYMARK_REDIS_TLS}")
