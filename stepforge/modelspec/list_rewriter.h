// SPDX-License-Identifier: Apache-2.0
// What passes that add calls to a list have in common.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "stepforge/modelspec/call_list.h"

namespace stepforge {

/// Copies a list call by call, so that a pass may add calls between. Results follow from the operands anew.
class Rewriter {
 public:
  explicit Rewriter(const CallList& list) : list_(list), place_(list.values.size(), -1) {}

  void take_inputs(Rows rows) {
    for (const int input : list_.inputs) {
      LayerValue value = list_.value(input);
      if (rows == Rows::slice) value.rows = rows;
      made_.values.push_back(std::move(value));
      made_.inputs.push_back(static_cast<int>(made_.values.size()) - 1);
      place(input) = made_.inputs.back();
    }
  }

  /// Where the value is in the new list; a pass may set it to what replaces the value.
  int& place(int value) { return place_[static_cast<std::size_t>(value)]; }
  const LayerValue& value(int index) const { return made_.value(index); }

  /// Adds a call of new values and returns its first result.
  int add(Call call) { return append(made_, std::move(call)); }

  /// A call of the old list with the new values in its place.
  Call moved(Call call) {
    for (int& operand : call.operands) operand = place(operand);
    return call;
  }

  /// Adds moved(call), perhaps changed, in place of `old`.
  void replace(const Call& old, Call call) {
    add(std::move(call));
    for (std::size_t r = 0; r < old.results.size(); ++r)
      place(old.results[r]) = made_.calls.back().results[r];
  }

  CallList finish() {
    for (const int output : list_.outputs) made_.outputs.push_back(place(output));
    return std::move(made_);
  }

 private:
  const CallList& list_;
  std::vector<int> place_;
  CallList made_;
};

}  // namespace stepforge
