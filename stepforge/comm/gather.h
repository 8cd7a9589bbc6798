// What every rank of a group gives, known to all of them.
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

/// The values that each rank gives, equally many on all, one rank's after the other's. One collective.
template <std::ranges::contiguous_range Values>
std::vector<std::ranges::range_value_t<Values>> gather_values(Communicator& group, const Values& own) {
  using Value = std::ranges::range_value_t<Values>;
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(std::ranges::size(own) * static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// The text that each rank gives, by rank. One collective if all are empty, else two. Throws Error, on every
/// rank, if one is longer than 16 MiB.
std::vector<std::string> gather_texts(Communicator& group, std::string_view own);

}  // namespace stepforge
