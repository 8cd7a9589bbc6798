// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/plugin/kernels.h"

namespace stepforge::cuda_plugin {

void add_cuda_kernels(KernelTable& table) {
#define STEPFORGE_SET(name) table.name.device = name;
  STEPFORGE_CUDA_ROWS(STEPFORGE_SET)
#undef STEPFORGE_SET
}

}  // namespace stepforge::cuda_plugin
