// SPDX-License-Identifier: Apache-2.0
// Rows of kernels/embedding.h.
#include <tuple>

#include <ATen/ops/sort.h>

#include "stepforge/cuda/embedding.h"
#include "stepforge/cuda/plugin/arguments.h"
#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/cuda/plugin/launch.h"

namespace stepforge::cuda_plugin {

namespace {

/// weight: the table or its gradient.
cuda::EmbeddingTable table_of(const at::Tensor& weight, const VocabularyPart& part, double factor) {
  return {.rows = weight.size(0),
          .width = weight.size(1),
          .begin = part.begin,
          .vocabulary = part.size,
          .factor = factor};
}

}  // namespace

void embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& out,
                       const VocabularyPart& part, double factor) {
  on_stream_of(weight, [&](cuda::Stream stream) {
    cuda::embedding_forward(dtype_of(weight), read<int32_t>(tokens), tokens.numel(),
                            table_of(weight, part, factor), read_any(weight), write_any(out), stream);
  });
}

void embedding_backward(const at::Tensor& tokens, const at::Tensor& grad_out, const at::Tensor& grad_weight,
                        bool accumulate, const VocabularyPart& part, double factor) {
  // Stable, so that those of one token stay in their order. On the device, and the host does not wait.
  const at::Tensor order =
      std::get<1>(at::sort(tokens, /*stable=*/true, /*dim=*/0, /*descending=*/false)).to(at::kInt);
  on_stream_of(grad_out, [&](cuda::Stream stream) {
    cuda::embedding_backward(dtype_of(grad_out), read<int32_t>(tokens), read<int32_t>(order), tokens.numel(),
                             table_of(grad_weight, part, factor), read_any(grad_out),
                             write<float>(grad_weight), accumulate, stream);
  });
}

}  // namespace stepforge::cuda_plugin
