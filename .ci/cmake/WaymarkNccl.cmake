# Finds the header of NCCL, for NcclCollective, where it is wanted (WAYMARK_NCCL). The library is
# loaded when it is used, so that nothing links it.
#
# Sets WAYMARK_NCCL_FOUND and WAYMARK_NCCL_INCLUDE_DIR. The header comes with NCCL's own packages
# (libnccl-dev of NVIDIA's repositories), and with the wheels nvidia-nccl-cu12 and -cu13 of PyPI:
#   pip download --no-deps --only-binary=:all: nvidia-nccl-cu13 && python -m zipfile -e *.whl nccl
#   cmake ... -DWAYMARK_NCCL=ON -DWAYMARK_NCCL_INCLUDE_DIR=nccl/nvidia/nccl/include
set(WAYMARK_NCCL_FOUND FALSE)
if(NOT WAYMARK_NCCL)
  return()
endif()
if(NOT WAYMARK_CUDA_FOUND)
  message(FATAL_ERROR "WAYMARK_NCCL=ON needs CUDA (WAYMARK_CUDA)")
endif()
find_path(WAYMARK_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NOT WAYMARK_NCCL_INCLUDE_DIR)
  message(FATAL_ERROR "WAYMARK_NCCL=ON, and nccl.h was not found; set WAYMARK_NCCL_INCLUDE_DIR")
endif()
set(WAYMARK_NCCL_FOUND TRUE)
message(STATUS "Waymark: NCCL by ${WAYMARK_NCCL_INCLUDE_DIR}")
