#include "kernels/attention.h"

#include "kernels/cpu/kernels.h"

namespace stepforge::cpu {
void attention_forward(const at::Tensor& qkv, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, const at::Tensor& out, const at::Tensor& lse) {
  attention_forward_reference(qkv, shape, cu_seqlens, out, lse);
}
void attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, const at::Tensor& grad_qkv) {
  attention_backward_reference(grad_out, qkv, out, lse, shape, cu_seqlens, grad_qkv);
}
void attention_cached(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache,
                      std::span<const int64_t> past_lengths, const AttentionShape& shape,
                      const at::Tensor& out) {
  attention_cached_reference(q, k_cache, v_cache, past_lengths, shape, out);
}
}  // namespace stepforge::cpu
