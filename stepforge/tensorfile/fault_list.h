// Collects everything wrong with a file or folder, so that one error tells it all.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

class FaultList {
 public:
  /// `where` names what is checked and starts the message.
  explicit FaultList(std::string where) : where_(std::move(where)) {}

  void add(std::string fault) {
    ++count_;
    if (shown_.size() < max_shown) shown_.push_back(std::move(fault));
  }

  /// Throws FormatError with the first faults, a line each, and their number.
  void throw_if_any() const {
    if (count_ == 0) return;
    if (count_ == 1) throw FormatError(format("{}: {}", where_, shown_[0]));
    const std::string more =
        count_ > shown_.size() ? format("\n  and {} more", count_ - shown_.size()) : std::string();
    throw FormatError(format("{}: {} faults:\n  {}{}", where_, count_, join(shown_, "\n  "), more));
  }

 private:
  static constexpr size_t max_shown = 100;
  std::string where_;
  std::vector<std::string> shown_;
  size_t count_ = 0;
};

}  // namespace stepforge
