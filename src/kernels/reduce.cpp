#include "kernels/reduce.h"

#include <vector>

#include <ATen/ops/isfinite.h>

#include "base/error.h"
#include "base/format.h"
#include "kernels/cpu/kernels.h"
#include "kernels/tensor_check.h"

namespace stepforge {

void sum_of_squares_by_chunk(const at::Tensor& flat, std::span<double> partials) {
  check_tensor(flat, "sum_of_squares buffer", {flat.numel()}, at::kFloat);
  if (static_cast<int64_t>(partials.size()) != reduce_chunks(flat.numel())) {
    throw Error(format("sum_of_squares: {} elements make {} chunks, but there is room for {}", flat.numel(),
                       reduce_chunks(flat.numel()), partials.size()));
  }
  if (flat.is_cpu()) {
    cpu::sum_of_squares_by_chunk(flat, partials);
  } else {
    sum_of_squares_by_chunk_reference(flat, partials);
  }
}

bool all_finite(const at::Tensor& flat) {
  check_tensor(flat, "all_finite buffer", {flat.numel()}, at::kFloat);
  return flat.is_cpu() ? cpu::all_finite(flat) : all_finite_reference(flat);
}

double sum_in_order(const at::Tensor& flat) {
  const at::Tensor host = flat.to(at::kDouble).cpu().contiguous();
  double sum = 0.0;
  for (int64_t i = 0; i < host.numel(); ++i) sum += host.const_data_ptr<double>()[i];
  return sum;
}

void sum_of_squares_by_chunk_reference(const at::Tensor& flat, std::span<double> partials) {
  for (size_t chunk = 0; chunk < partials.size(); ++chunk) {
    const int64_t begin = static_cast<int64_t>(chunk) * kReduceChunk;
    const int64_t end = std::min(begin + kReduceChunk, flat.numel());
    partials[chunk] = flat.slice(0, begin, end).to(at::kDouble).square().sum().item<double>();
  }
}

bool all_finite_reference(const at::Tensor& flat) {
  return at::isfinite(flat).all().item<bool>();
}

}  // namespace stepforge
