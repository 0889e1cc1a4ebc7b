# Detects CUDA and enables the language when it is there and wanted (WAYMARK_CUDA).
#
# Sets WAYMARK_CUDA_FOUND. Targets with .cu files are added only when it is true:
#   if(WAYMARK_CUDA_FOUND) ... endif()
# nvcc off PATH: -DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc or the environment's CUDACXX.
#
# Architectures: without CMAKE_CUDA_ARCHITECTURES, code for sm_80, sm_90, sm_100 and sm_120,
# and PTX of compute_90 for what comes later. The presets dev and ci build one, asan and tsan none (no
# sanitizer of the host's looks into a device); release builds all.
set(WAYMARK_CUDA_FOUND FALSE)
if(WAYMARK_CUDA STREQUAL "OFF")
  message(STATUS "Waymark: CUDA off (WAYMARK_CUDA=OFF)")
  return()
elseif(NOT WAYMARK_CUDA MATCHES "^(AUTO|ON)$")
  message(FATAL_ERROR "WAYMARK_CUDA must be AUTO, ON or OFF; it is '${WAYMARK_CUDA}'")
endif()

# Without a value CMake picks sm_75, and `native` fails on a machine without a GPU.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100-real;120-real;90-virtual")
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(WAYMARK_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WAYMARK_CUDA=ON, and no CUDA compiler was found; put nvcc on PATH or set "
      "CMAKE_CUDA_COMPILER")
  endif()
  message(STATUS "Waymark: CUDA not found, building for the host only")
  return()
endif()

enable_language(CUDA)
# CMake 3.25 knows no C++20 flag for nvcc and drops CUDA_STANDARD 20 in silence.
if(CMAKE_VERSION VERSION_LESS 3.26)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  list(APPEND CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
endif()
find_package(CUDAToolkit REQUIRED)
# The runtime goes into the program; no library of CUDA's has to be there where it runs.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(WAYMARK_CUDA_FOUND TRUE)
message(STATUS
  "Waymark: CUDA ${CUDAToolkit_VERSION} found, architectures ${CMAKE_CUDA_ARCHITECTURES}")
