// SPDX-License-Identifier: Apache-2.0
// Gathers values and strings of all ranks on every rank.
#pragma once

#include <cstddef>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "stepforge/comm/communicator.h"

namespace stepforge {

/// The values of all ranks, in rank order; all ranks must give the same number. One collective.
template <std::ranges::contiguous_range Values>
std::vector<std::ranges::range_value_t<Values>> gather_values(Communicator& group, const Values& own) {
  using Value = std::ranges::range_value_t<Values>;
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(std::ranges::size(own) * static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// The text of each rank, in rank order. One collective if all are empty, otherwise two. Throws Error on
/// every rank if one is longer than 16 MiB.
std::vector<std::string> gather_texts(Communicator& group, std::string_view own);

}  // namespace stepforge
