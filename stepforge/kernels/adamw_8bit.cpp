// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/adamw_8bit.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/dynamic_code.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

void check_moment(const QuantizedMoment& moment, std::string_view name, int64_t elements) {
  check_tensor(moment.indices, format("adamw_8bit {} indices", name), {elements}, at::kByte);
  check_tensor(moment.scales, format("adamw_8bit {} scales", name), {elements / kQuantizedBlock}, at::kFloat);
}

at::Tensor code_tensor(bool is_signed, at::Device device) {
  const at::Tensor code = at::empty({256}, at::device(at::kCPU).dtype(at::kFloat));
  std::ranges::copy(dynamic_code(is_signed), code.mutable_data_ptr<float>());
  return code.to(device);
}

at::Tensor dequantized(const QuantizedMoment& moment, const at::Tensor& code) {
  const at::Tensor values = at::index_select(code, 0, moment.indices.to(at::kInt));
  return (values.view({-1, kQuantizedBlock}) * moment.scales.unsqueeze(1)).view({-1});
}

/// Writes `values` if `updates`.
void quantize(const at::Tensor& values, const QuantizedMoment& moment, const at::Tensor& code, bool is_signed,
              const at::Tensor& updates) {
  const at::Tensor middles = (code.slice(0, 0, 255) + code.slice(0, 1, 256)) * 0.5;
  const at::Tensor blocks = values.view({-1, kQuantizedBlock});
  const at::Tensor scales = blocks.abs().amax(1);
  const at::Tensor share = blocks / at::where(scales.gt(0), scales, 1.0).unsqueeze(1);
  at::Tensor indices = at::bucketize(share, middles);
  if (!is_signed) indices = indices.maximum(share.gt(0).to(at::kLong));
  moment.indices.copy_(at::where(updates, indices.view({-1}).to(at::kByte), moment.indices));
  moment.scales.copy_(at::where(updates, scales, moment.scales));
}

}  // namespace

void adamw_8bit_update(const at::Tensor& parameter, const at::Tensor& grad, const QuantizedMoment& first,
                       const QuantizedMoment& second, const AdamWOptions& options,
                       const UpdateScalars& scalars) {
  const int64_t elements = parameter.numel();
  check_tensor(parameter, "adamw_8bit parameter", {elements}, at::kFloat);
  check_tensor(grad, "adamw_8bit grad", {elements}, at::kFloat);
  if (elements % kQuantizedBlock != 0)
    throw Error(
        format("adamw_8bit: {} elements are not a multiple of blocks of {}", elements, kQuantizedBlock));
  check_moment(first, "first moment", elements);
  check_moment(second, "second moment", elements);
  pick(&KernelTable::adamw_8bit_update, parameter)(parameter, grad, first, second, options, scalars);
}

void reference::adamw_8bit_update(const at::Tensor& parameter, const at::Tensor& grad,
                                  const QuantizedMoment& first, const QuantizedMoment& second,
                                  const AdamWOptions& options, const UpdateScalars& scalars) {
  const at::Tensor signed_code = code_tensor(true, parameter.device());
  const at::Tensor code = code_tensor(false, parameter.device());
  const at::Tensor updates = scalars.finite.ne(0.0);
  for_each_slice(0, parameter.numel(), [&](int64_t from, int64_t to) {
    const auto scales = [&](const QuantizedMoment& moment) {
      return moment.scales.slice(0, from / kQuantizedBlock, to / kQuantizedBlock);
    };
    const at::Tensor first_indices = first.indices.slice(0, from, to);
    const at::Tensor second_indices = second.indices.slice(0, from, to);
    const at::Tensor first_scales = scales(first);
    const at::Tensor second_scales = scales(second);
    const QuantizedMoment own_first{first_indices, first_scales};
    const QuantizedMoment own_second{second_indices, second_scales};
    const at::Tensor m = dequantized(own_first, signed_code);
    const at::Tensor v = dequantized(own_second, code);
    reference::adamw_update(parameter.slice(0, from, to), grad.slice(0, from, to), m, v, 0, to - from,
                            options, scalars);
    quantize(m, own_first, signed_code, true, updates);
    quantize(v, own_second, code, false, updates);
  });
}

}  // namespace stepforge
