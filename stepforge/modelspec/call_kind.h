// SPDX-License-Identifier: Apache-2.0
// The kinds of calls, one row for each in calls/, as step/operations.h has for operations. A row states what a call makes, what
// its derivative reads, what may be overwritten, its FLOPs, workspace and exchanges, all as formulas of its operands. Derivation
// (call_program.h), costs (call_cost.h) and value types read the rows; nn/call_entries.h runs them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/modelspec/call_list.h"
#include "stepforge/modelspec/cost.h"

namespace stepforge {

/// A call with its operands, as formulas see it.
struct CallView {
  const Call& call;
  std::span<const LayerValue> operands;

  template <typename T>
  const T& attributes() const {
    return attributes_of<T>(call);
  }
};

/// Which operands and results of a call, one bit each.
struct CallValues {
  uint32_t operands = 0;
  uint32_t results = 0;
};

/// What a call allocates while it runs, besides results and gradients.
struct CallWorkspace {
  Workspace forward;    ///< while it computes its results
  Workspace backward;   ///< while it computes the gradients of its operands
  Workspace weights;    ///< while it computes those of its weights, which come first
  bool beside = false;  ///< both are computed, and live, at the same time
  Workspace queued;     ///< what a queue of weight gradients keeps of it, besides values and gradients
};

struct CallExchanges {
  std::vector<Exchange> forward;
  std::vector<Exchange> backward;
};

inline constexpr int kNoOperand = -1;

/// The formulas of a kind of call. Calls point to it: another object is another kind. Empty functions mean: none.
struct CallKind {
  std::string_view name;
  TypeRule rule = TypeRule::elementwise;
  TypeRule (*stated_rule)(const CallView&) = nullptr;  ///< instead of `rule`
  /// Its results; append() names them. Throws Error if operands or weights do not fit.
  std::vector<LayerValue> (*results)(const CallView&) = nullptr;
  /// The values that its derivative reads.
  CallValues (*derivative_reads)(const CallView&) = nullptr;
  /// The operand that the first result may overwrite, if both have one shape and nothing else needs it.
  int (*overwrites)(const CallView&) = nullptr;
  /// The operand that the first result is, in the same memory: nothing is computed.
  int (*aliases_operand)(const CallView&) = nullptr;
  /// Operands whose gradient is that of the first result, in the same memory.
  uint32_t (*passes_gradient)(const CallView&) = nullptr;
  /// The operand whose gradient may overwrite that of the first result.
  int gradient_overwrites = kNoOperand;
  /// Whether the derivative can add what other uses of the first operand contribute to its gradient, in the memory of either.
  bool (*adds_gradient)(const CallView&) = nullptr;
  /// For calls whose weight gradients may be computed later: the operands that a queue keeps until then, and whether it keeps
  /// the gradient of the first result. What else it keeps is CallWorkspace::queued.
  uint32_t (*queued_operands)(const CallView&) = nullptr;
  bool (*queues_gradient)(const CallView&) = nullptr;
  double (*flops)(const CallView&) =
      nullptr;  ///< forward, per row; of all tokens, unless operand and result are slices
  double (*flops_per_key)(const CallView&) = nullptr;  ///< the same for each key that attention sees
  int64_t (*window)(const CallView&) = nullptr;        ///< attention: the most keys that a query sees; 0: all
  CallWorkspace (*workspace)(const CallView&) = nullptr;
  CallExchanges (*exchanges)(const CallView&) = nullptr;
  std::string (*text)(const CallView&) = nullptr;  ///< its attributes, for people: "window 512"
};

/// Throws Error, naming the call, unless its operand has this width.
void require_width(const CallView& view, std::size_t operand, int64_t width);
/// The same of the elements of a weight.
void require_elements(const CallView& view, std::size_t weight, int64_t elements);

}  // namespace stepforge
