// SPDX-License-Identifier: Apache-2.0
// A CUDA stream, for headers that no CUDA header may be needed for. All kernels of this folder are enqueued on one and
// return at once; a launch that fails is seen by cudaGetLastError().
#pragma once

struct CUstream_st;

namespace stepforge::cuda {

using Stream = CUstream_st*;  ///< cudaStream_t

}  // namespace stepforge::cuda
