// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/expert_rows.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/device_copy.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {

namespace {

void check_rows(const ExpertRows& rows, const at::Tensor& of_tokens, const at::Tensor& of_rows,
                std::string_view operation) {
  const int64_t tokens = rows.rows.size(0);
  check_tensor(of_tokens, format("{} tokens", operation), {tokens, of_tokens.size(1)}, of_rows.scalar_type());
  check_shape(of_rows, format("{} rows", operation), {rows.count(), of_tokens.size(1)});
}

/// The token of each row.
at::Tensor tokens_of(const ExpertRows& rows) {
  return rows.slots.to(at::kLong).div(rows.rows.size(1), "floor");
}

/// `indices` on the host, where they are checked and sorted: one wait for the device.
at::Tensor on_host(const at::Tensor& indices) {
  check_tensor(indices, "indices of experts", {indices.size(0), indices.size(1)}, at::kInt);
  return indices.cpu();
}

void require_experts_of(const at::Tensor& host, int64_t experts) {
  const int32_t* const expert = host.const_data_ptr<int32_t>();
  for (int64_t slot = 0; slot < host.numel(); ++slot)
    if (expert[slot] < 0 || expert[slot] >= experts)
      throw Error(format("token {} takes expert {} of {}", slot / host.size(1), expert[slot], experts));
}

/// Rows on `device` in `count` groups, inside a group by slot. place(slot, expert): the group of a slot's row; -1: it has none.
template <typename Place>
ExpertRows sort_slots(const at::Tensor& host, at::Device device, int64_t count, const Place& place) {
  const int32_t* const expert = host.const_data_ptr<int32_t>();
  const int64_t slots = host.numel();
  std::vector<int64_t> offsets(static_cast<size_t>(count) + 1, 0);
  for (int64_t slot = 0; slot < slots; ++slot)
    if (const int64_t group = place(slot, expert[slot]); group >= 0)
      ++offsets[static_cast<size_t>(group) + 1];
  for (size_t g = 1; g < offsets.size(); ++g) offsets[g] += offsets[g - 1];
  std::vector<int64_t> next(offsets.begin(), offsets.end() - 1);
  const at::Tensor slot_of = at::empty({offsets.back()}, host.options());
  const at::Tensor row_of = at::empty_like(host);
  int32_t* const to_slot = slot_of.mutable_data_ptr<int32_t>();
  int32_t* const to_row = row_of.mutable_data_ptr<int32_t>();
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t group = place(slot, expert[slot]);
    to_row[slot] = -1;
    if (group < 0) continue;
    const int64_t row = next[static_cast<size_t>(group)]++;
    to_row[slot] = static_cast<int32_t>(row);
    to_slot[row] = static_cast<int32_t>(slot);
  }
  return {std::move(offsets), copy_to_device(slot_of, device), copy_to_device(row_of, device)};
}

}  // namespace

void require_experts(const at::Tensor& indices, int64_t experts) {
  require_experts_of(on_host(indices), experts);
}

std::vector<int64_t> expert_offsets(const at::Tensor& indices, int64_t experts) {
  const at::Tensor host = on_host(indices);
  require_experts_of(host, experts);
  const int32_t* const expert = host.const_data_ptr<int32_t>();
  std::vector<int64_t> offsets(static_cast<size_t>(experts) + 1, 0);
  for (int64_t slot = 0; slot < host.numel(); ++slot) ++offsets[static_cast<size_t>(expert[slot]) + 1];
  for (size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];
  return offsets;
}

ExpertRows sort_by_expert(const at::Tensor& indices, int64_t experts) {
  const at::Tensor host = on_host(indices);
  require_experts_of(host, experts);
  return sort_slots(host, indices.device(), experts, [](int64_t, int32_t expert) { return expert; });
}

ExpertRows select_rows(const at::Tensor& indices, const ShardRange& own, int64_t ranks) {
  const int64_t slots_of_rank = indices.numel() / ranks;
  return sort_slots(on_host(indices), indices.device(), ranks * own.size(),
                    [&](int64_t slot, int32_t expert) {
                      return expert >= own.begin && expert < own.end
                                 ? slot / slots_of_rank * own.size() + expert - own.begin
                                 : -1;
                    });
}

at::Tensor count_tokens(const at::Tensor& indices, const at::Tensor& token_weights, int64_t experts) {
  const at::Tensor counts = at::zeros({experts}, indices.options().dtype(at::kLong));
  const at::Tensor counted = token_weights.ne(0).to(at::kLong).unsqueeze(1).expand_as(indices);
  return counts.index_add_(0, indices.to(at::kLong).flatten(), counted.flatten());
}

void gather_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out) {
  check_rows(rows, x, out, "gather_rows");
  pick(&KernelTable::gather_rows, x)(x, rows, out);
}

void combine_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out) {
  check_rows(rows, out, x, "combine_rows");
  pick(&KernelTable::combine_rows, x)(x, rows, out);
}

at::Tensor gather_rows(const at::Tensor& x, const ExpertRows& rows) {
  at::Tensor out = at::empty({rows.count(), x.size(1)}, x.options());
  gather_rows(x, rows, out);
  return out;
}

at::Tensor combine_rows(const at::Tensor& x, const ExpertRows& rows) {
  at::Tensor out = at::empty({rows.rows.size(0), x.size(1)}, x.options());
  combine_rows(x, rows, out);
  return out;
}

void reference::gather_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out) {
  out.copy_(at::index_select(x, 0, tokens_of(rows)));
}

void reference::combine_rows(const at::Tensor& x, const ExpertRows& rows, const at::Tensor& out) {
  const at::Tensor nothing = at::zeros({1, x.size(1)}, x.options());
  const at::Tensor places = at::where(rows.rows.lt(0), at::full_like(rows.rows, rows.count()), rows.rows);
  const at::Tensor sorted = at::index_select(at::cat({x, nothing}), 0, places.flatten()).to(compute_type(x));
  out.copy_(sorted.view({rows.rows.size(0), rows.rows.size(1), x.size(1)}).sum(1));
}

}  // namespace stepforge
