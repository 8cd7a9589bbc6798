// SPDX-License-Identifier: Apache-2.0
// Collects everything that is wrong with a file, a folder or a configuration, so that one error lists it all.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

class ErrorList {
 public:
  /// `where` names what is checked and starts the message; "" if each error names its own place.
  explicit ErrorList(std::string where = "") : where_(where.empty() ? "" : std::move(where) + ": ") {}

  /// Counts the error; only the first 100 are kept.
  void add(std::string error) {
    ++count_;
    if (kept_.size() < kMaxKept) kept_.push_back(std::move(error));
  }

  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }

  /// "where: error", or "where: 3 errors:" and each error on its own line.
  std::string message() const {
    if (count_ == 1) return where_ + kept_[0];
    const std::string more =
        count_ > kept_.size() ? format("\n  and {} more", count_ - kept_.size()) : std::string();
    return format("{}{} errors:\n  {}{}", where_, count_, join(kept_, "\n  "), more);
  }

  template <typename Exception = FormatError>
  void throw_if_any() const {
    if (!empty()) throw Exception(message());
  }

 private:
  static constexpr size_t kMaxKept = 100;
  std::string where_;
  std::vector<std::string> kept_;
  size_t count_ = 0;
};

}  // namespace stepforge
