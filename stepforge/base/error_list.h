// SPDX-License-Identifier: Apache-2.0
// Collects everything that is wrong with a file, a folder or a configuration, so that one error lists it all.
#pragma once

#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

class ErrorList {
 public:
  /// `where` names what is checked and starts the message.
  explicit ErrorList(const std::string& where) : start_(where + ": ") {}
  /// The errors name their own places; several are "3 errors in <subject>:".
  static ErrorList with_places(const std::string& subject) {
    ErrorList list("");
    list.start_ = "";
    list.subject_ = " in " + subject;
    return list;
  }

  /// Counts the error; only the first 100 are kept.
  void add(std::string error) {
    ++count_;
    if (kept_.size() < kMaxKept) kept_.push_back(std::move(error));
  }

  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }

  /// "where: error", or "where: 3 errors:" and each error on its own line.
  std::string message() const {
    if (count_ == 1) return start_ + kept_[0];
    const std::string more =
        count_ > kept_.size() ? format("\n  and {} more", count_ - kept_.size()) : std::string();
    return format("{}{} errors{}:\n  {}{}", start_, count_, subject_, join(kept_, "\n  "), more);
  }

  template <typename Exception = FormatError>
  void throw_if_any() const {
    if (!empty()) throw Exception(message());
  }

 private:
  static constexpr size_t kMaxKept = 100;
  std::string start_;
  std::string subject_;
  std::vector<std::string> kept_;
  size_t count_ = 0;
};

}  // namespace stepforge
