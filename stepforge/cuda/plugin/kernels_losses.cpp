// SPDX-License-Identifier: Apache-2.0
// Rows of kernels/cross_entropy.h.
#include "stepforge/cuda/cross_entropy.h"
#include "stepforge/cuda/plugin/arguments.h"
#include "stepforge/cuda/plugin/kernels.h"
#include "stepforge/cuda/plugin/launch.h"

namespace stepforge::cuda_plugin {

namespace {

cuda::LossGradient gradient_of(const LossGradient& gradient) {
  return {.scale = read<double>(gradient.scale),
          .z_weight = gradient.z_weight,
          .weights = read<float>(gradient.weights),
          .cap = gradient.cap,
          .smoothing = gradient.smoothing,
          .label_share = gradient.label_share(),
          .share = gradient.share};
}

cuda::VocabularyPart part_of(const VocabularyPart& part) {
  return {.begin = part.begin, .size = part.size};
}

}  // namespace

void cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const LossGradient& gradient,
                   const at::Tensor& token_loss) {
  const at::Tensor wide_labels = labels.to(at::kLong);  // the same tensor if they are int64
  on_stream_of(logits, [&](cuda::Stream stream) {
    cuda::cross_entropy(dtype_of(logits), write_any(logits), read<int64_t>(wide_labels), logits.size(0),
                        logits.size(1), gradient_of(gradient), write<float>(token_loss), stream);
  });
}

void part_maxima(const at::Tensor& logits, const at::Tensor& largest) {
  on_stream_of(logits, [&](cuda::Stream stream) {
    cuda::part_maxima(dtype_of(logits), read_any(logits), logits.size(0), logits.size(1),
                      write<float>(largest), stream);
  });
}

void part_terms(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                const at::Tensor& largest, double smoothing, const at::Tensor& terms) {
  on_stream_of(logits, [&](cuda::Stream stream) {
    cuda::part_terms(dtype_of(logits), read_any(logits), read<int64_t>(labels), logits.size(0),
                     logits.size(1), part_of(part), read<float>(largest), smoothing, write<double>(terms),
                     stream);
  });
}

void part_losses(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                 const at::Tensor& largest, const at::Tensor& terms, const LossGradient& gradient,
                 const at::Tensor& token_loss) {
  on_stream_of(logits, [&](cuda::Stream stream) {
    cuda::part_losses(dtype_of(logits), write_any(logits), read<int64_t>(labels), logits.size(0),
                      logits.size(1), part_of(part), read<float>(largest), read<double>(terms),
                      gradient_of(gradient), write<float>(token_loss), stream);
  });
}

void cap_logits(const at::Tensor& logits, double cap) {
  if (!logits.is_contiguous()) return reference::cap_logits(logits, cap);
  on_stream_of(logits, [&](cuda::Stream stream) {
    cuda::cap_logits(dtype_of(logits), write_any(logits), logits.numel(), cap, stream);
  });
}

}  // namespace stepforge::cuda_plugin
