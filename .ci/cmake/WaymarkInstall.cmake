# The CMake package: find_package(waymark CONFIG REQUIRED), then waymark::plugin and the others for
# C++, waymark::waymark for C. Its components are cpp and c; without a list a project in C alone gets
# c, which needs no other package, and one in C++ both. The component c alone, and what stands alone
# (WAYMARK_STANDALONE), is a package of waymark::waymark. pkg-config knows the C library as waymark.
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY WAYMARK_INSTALLED_LIBRARIES)
if(NOT libraries AND NOT WAYMARK_SHARED)
  return()
endif()

# An installed static library needs, at the user's link, what it was linked with here.
get_property(links GLOBAL PROPERTY WAYMARK_INSTALLED_LINKS)
set(WAYMARK_PACKAGE_DEPENDENCIES "")
foreach(package IN ITEMS Threads absl nlohmann_json CLI11 CUDAToolkit)
  string(REGEX REPLACE "^CUDAToolkit$" "CUDA" namespace "${package}")
  if(links MATCHES "(^|;)${namespace}::")
    string(APPEND WAYMARK_PACKAGE_DEPENDENCIES "find_dependency(${package})\n")
  endif()
endforeach()

set(destination "${CMAKE_INSTALL_LIBDIR}/cmake/waymark")
configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/waymark-config.cmake.in"
  "${PROJECT_BINARY_DIR}/waymark-config.cmake"
  INSTALL_DESTINATION "${destination}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/waymark-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/waymark-cpp.cmake" @ONLY CONTENT [[
set(THREADS_PREFER_PTHREAD_FLAG ON)
@WAYMARK_PACKAGE_DEPENDENCIES@
include("${CMAKE_CURRENT_LIST_DIR}/waymark-targets.cmake")
]])
if(libraries)
  # Installed headers are found as <waymark/...>, and include one another so.
  install(CODE "set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${WAYMARK_HEADER_DESTINATION}\")")
  install(CODE [[
    file(GLOB_RECURSE headers "${folder}/*")
    foreach(header IN LISTS headers)
      file(READ "${header}" text)
      string(REGEX REPLACE "(#include \")(adapters|blockstore|kernels|plugin)/" "\\1waymark/\\2/" text "${text}")
      file(WRITE "${header}" "${text}")
    endforeach()
  ]])
  install(FILES "${PROJECT_BINARY_DIR}/waymark-cpp.cmake" DESTINATION "${destination}")
  install(EXPORT waymark-targets NAMESPACE waymark:: DESTINATION "${destination}")
endif()
set(component)
if(WAYMARK_SHARED)
  set(component COMPONENT c)
endif()
install(FILES
  "${PROJECT_BINARY_DIR}/waymark-config.cmake"
  "${PROJECT_BINARY_DIR}/waymark-config-version.cmake"
  DESTINATION "${destination}" ${component})
if(WAYMARK_SHARED)
  install(EXPORT waymark-c-targets
    NAMESPACE waymark:: DESTINATION "${destination}" COMPONENT c)
  if(NOT SKBUILD)
    file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/waymark.pc" @ONLY CONTENT [[
prefix=${pcfiledir}/@up@
libdir=${prefix}/@CMAKE_INSTALL_LIBDIR@
Name: waymark
Description: @PROJECT_DESCRIPTION@
Version: @PROJECT_VERSION@
Cflags: -I${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
Libs: -L${libdir} -lwaymark
]])
    install(FILES "${PROJECT_BINARY_DIR}/waymark.pc"
      DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT c)
  endif()
endif()
install(FILES LICENSE NOTICE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
