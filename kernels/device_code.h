// WAYMARK_DEVICE marks code that is written over a Warp or a Block: of the device where nvcc
// compiles it, ordinary inline code elsewhere. Internal to kernels.
#ifndef WAYMARK_KERNELS_DEVICE_CODE_H_
#define WAYMARK_KERNELS_DEVICE_CODE_H_

#if defined(__CUDACC__)
#define WAYMARK_DEVICE __device__ __forceinline__
#else
#define WAYMARK_DEVICE inline
#endif

#endif  // WAYMARK_KERNELS_DEVICE_CODE_H_
