// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_passes.h"

#include <algorithm>
#include <utility>

#include "stepforge/modelspec/call_kind.h"
#include "stepforge/modelspec/calls/attention.h"
#include "stepforge/modelspec/calls/exchange.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/lookup.h"
#include "stepforge/modelspec/list_rewriter.h"

namespace stepforge {

namespace {

Call exchange_call(std::string name, const Call& beside, int operand, ExchangeAttributes attributes) {
  return {.kind = &kExchange,
          .name = std::move(name),
          .region = beside.region,
          .operands = {operand},
          .attributes = attributes};
}

ExchangeAttributes enter_attributes(const TensorParallel& tensor) {
  ExchangeAttributes enter;
  if (tensor.sequence) enter.forward = ExchangeKind::gather;
  if (tensor.divided)
    enter.backward = tensor.sequence ? ExchangeKind::sum_slice : ExchangeKind::sum;
  else
    enter.backward = ExchangeKind::slice;
  return enter;
}

ExchangeAttributes leave_attributes(const TensorParallel& tensor) {
  ExchangeAttributes leave;
  if (tensor.divided)
    leave.forward = tensor.sequence ? ExchangeKind::sum_slice : ExchangeKind::sum;
  else
    leave.forward = ExchangeKind::slice;
  if (tensor.sequence) leave.backward = ExchangeKind::gather;
  return leave;
}

}  // namespace

namespace {

bool is_linear(const Call& call) {
  return call.is(kLinear);
}

bool is_product(const Call& call) {
  return is_linear(call) || call.kind->rule == TypeRule::loss;
}

/// What enters the products of a layer, gathered once for all of them.
class Entrance {
 public:
  Entrance(const CallList& list, const TensorParallel& tensor, Rewriter& rewriter)
      : tensor_(tensor), rewriter_(rewriter) {
    const auto first = std::ranges::find_if(list.calls, is_product);
    if (first != list.calls.end()) value_ = first->operands.front();
  }

  /// `old`: the call before the pass.
  void enter(const Call& old, Call& moved) {
    if (!is_product(old) || old.operands.front() != value_) return;
    if (entered_ < 0) {
      Call enter = exchange_call("enter", old, moved.operands.front(), enter_attributes(tensor_));
      enter.recompute = is_linear(old) && tensor_.sequence && tensor_.divided;  // a rank keeps its slice only
      entered_ = rewriter_.add(std::move(enter));
    }
    moved.operands.front() = entered_;
  }

 private:
  const TensorParallel& tensor_;
  Rewriter& rewriter_;
  int value_ = -1;
  int entered_ = -1;
};

}  // namespace

CallList over_tensor(const CallList& list, const TensorParallel& tensor) {
  if (tensor.degree == 1 || (!tensor.divided && !tensor.sequence)) return list;
  const auto first = std::ranges::find_if(list.calls, is_product);
  const auto after_last = std::find_if(list.calls.rbegin(), list.calls.rend(), is_linear).base();
  const bool slices_beside = tensor.async && tensor.sequence && tensor.divided;
  Rewriter rewriter(list);
  rewriter.take_inputs(tensor.sequence ? Rows::slice : Rows::tokens);
  Entrance entrance(list, tensor, rewriter);
  for (auto call = list.calls.begin(); call != list.calls.end(); ++call) {
    Call moved = rewriter.moved(*call);
    const bool last = is_linear(*call) && call + 1 == after_last;
    const bool beside = slices_beside && is_linear(*call) && (call == first || last);
    if (beside)
      moved.attributes = LinearAttributes{tensor.degree, call == first, last};
    else
      entrance.enter(*call, moved);
    const bool whole = std::ranges::all_of(
        moved.weights, [](const CallWeight& weight) { return weight.division == Division::whole; });
    const bool slice = !moved.operands.empty() && rewriter.value(moved.operands.front()).rows == Rows::slice;
    const bool inside = call > first && call + 1 < after_last;
    moved.sums_weight_gradients =
        !moved.weights.empty() && whole && !is_product(*call) && (slice || (inside && tensor.divided));
    rewriter.replace(*call, std::move(moved));
    if ((last && !beside) || call->is(kLookup)) {
      int& result = rewriter.place(call->results.front());
      result = rewriter.add(exchange_call("leave", *call, result, leave_attributes(tensor)));
    }
  }
  return rewriter.finish();
}

CallList on_slices(const CallList& list, const TensorParallel& tensor) {
  if (!tensor.sequence) return list;
  Rewriter rewriter(list);
  rewriter.take_inputs(Rows::slice);
  for (const Call& call : list.calls) rewriter.replace(call, rewriter.moved(call));
  return rewriter.finish();
}

CallList without_ahead(const CallList& list, int64_t ahead) {
  CallList made = list;
  std::vector<bool> missing(list.values.size());
  std::erase_if(made.calls, [&](const Call& call) {
    const auto is_missing = [&](int value) { return bool{missing[static_cast<std::size_t>(value)]}; };
    const bool drop = (call.is(kLookup) && attributes_of<LookupAttributes>(call).ahead > ahead) ||
                      std::ranges::any_of(call.operands, is_missing);
    if (drop)
      for (const int result : call.results) missing[static_cast<std::size_t>(result)] = true;
    return drop;
  });
  std::erase_if(made.outputs, [&](int output) { return missing[static_cast<std::size_t>(output)]; });
  return made;
}

CallList over_context(const CallList& list, const ContextParallel& context) {
  if (context.degree == 1) return list;
  Rewriter rewriter(list);
  rewriter.take_inputs(Rows::tokens);
  for (const Call& call : list.calls) {
    Call moved = rewriter.moved(call);
    if (!call.is(kAttention)) {
      rewriter.replace(call, std::move(moved));
      continue;
    }
    auto attributes = attributes_of<AttentionAttributes>(call);
    attributes.context = context;
    const HeadsAttributes heads{attributes.shape, context.heads()};
    const auto exchange = [&](const CallKind& kind, std::string name, int operand) {
      return rewriter.add({.kind = &kind,
                           .name = std::move(name),
                           .region = call.region,
                           .operands = {operand},
                           .attributes = heads});
    };
    if (heads.degree > 1) {
      attributes.shape = heads.part();
      moved.operands.front() = exchange(kToHeads, "to heads", moved.operands.front());
    }
    moved.attributes = attributes;
    rewriter.replace(call, std::move(moved));
    int& out = rewriter.place(call.results.front());
    if (heads.degree > 1) out = exchange(kToTokens, "to tokens", out);
  }
  return rewriter.finish();
}

void recompute_calls(CallList& list, std::span<const std::string> names) {
  const auto is_named = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (Call& call : list.calls) {
    const bool leaves = std::ranges::any_of(call.results, [&](int result) {
      return std::ranges::count(list.outputs, result) > 0 ||
             std::ranges::any_of(list.calls, [&](const Call& reader) {
               return reader.region != call.region && std::ranges::count(reader.operands, result) > 0;
             });
    });
    if (is_named(call.region) && !leaves) call.recompute = true;
    if (is_named(call.full_name())) call.recompute = true;
  }
}

}  // namespace stepforge
