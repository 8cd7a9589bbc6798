// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/adapter_writer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stepforge/base/random.h"
#include "stepforge/modelspec/calls/exchange.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/lookup.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/modelspec/calls/magnitude.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/list_rewriter.h"

namespace stepforge {

namespace {

/// The operand of expert_in and expert_out that says which experts each token takes.
constexpr std::size_t kExpertsOperand = 1;

/// The first of the channels that a rank has of the input of a matrix that is divided by its columns.
int64_t first_channel(const Adapter& adapter) {
  return adapter.division == Division::columns ? adapter.a.sub_tensors.front().offsets.at(1) : 0;
}

/// Adds the calls of adapters to the lists of a block.
class AdapterWriter {
 public:
  AdapterWriter(const CallList& list, const Adapters& adapters, bool dropout)
      : list_(list), adapters_(adapters), dropout_(dropout), rewriter_(list) {}

  CallList write() {
    rewriter_.take_inputs(Rows::tokens);
    for (const Call& call : list_.calls) {
      if (const Adapter* found = adapter_of(call); found != nullptr) {
        if (call.is(kExpertIn))
          add_expert_in(call, *found);
        else if (call.is(kExpertOut))
          add_expert_out(call, *found);
        else if (call.is(kLookup))
          add_lookup(call, *found);
        else if (call.is(kLoss))
          add_loss(call, *found);
        else
          add_product(call, *found);
      } else if (call.is(kExchange) && leaving_ != nullptr && call.operands.front() == left_) {
        add_exchange(call);
      } else {
        rewriter_.replace(call, rewriter_.moved(call));
      }
    }
    return rewriter_.finish();
  }

 private:
  const Adapter* adapter_of(const Call& call) const {
    const auto found = adapters_.find(adapted_name(call));
    return found == adapters_.end() ? nullptr : &found->second;
  }

  int add(const Call& beside, const CallKind& kind, const char* name, std::vector<int> operands,
          Call call = {}) {
    call.kind = &kind;
    call.name = beside.name + name;
    call.region = beside.region;
    call.operands = std::move(operands);
    return rewriter_.add(std::move(call));
  }

  /// h = A x.
  int add_a(const Call& call, const Adapter& adapter, int x) {
    if (dropout_)
      x = add(call, kDropout, ".dropout", {x},
              {.attributes = DropoutAttributes{stream_key(0, adapter.a.name), first_channel(adapter)},
               .recompute = true});
    return add(call, kLinear, ".A", {x},
               {.weights = {call_weight(adapter.a)},
                .sums_weight_gradients = adapter.sums && adapter.division == Division::rows});
  }

  /// h = A x, from which the loss makes the second term of its logits.
  void add_loss(const Call& call, const Adapter& adapter) {
    Call moved = rewriter_.moved(call);
    moved.operands.push_back(add_a(call, adapter, moved.operands.front()));
    moved.weights.push_back(call_weight(adapter.b.front()));
    std::any_cast<LossAttributes&>(moved.attributes).adapter_scale = adapter.low_rank.parts.front().scale;
    rewriter_.replace(call, std::move(moved));
  }

  /// h = A x, then the product itself, then what B adds to it.
  void add_product(const Call& call, const Adapter& adapter) {
    Call moved = rewriter_.moved(call);
    const LinearAttributes beside = linear_attributes(call);
    int x = moved.operands.front();
    if (beside.gathers_input)
      x = add(call, kExchange, ".enter", {x},
              {.attributes = ExchangeAttributes{ExchangeKind::gather, ExchangeKind::sum_slice},
               .recompute = true});
    int h = add_a(call, adapter, x);
    rewriter_.replace(call, std::move(moved));
    if (beside.scatters_result)
      h = add(call, kExchange, ".leave", {h},
              {.attributes = ExchangeAttributes{ExchangeKind::sum_slice, ExchangeKind::gather}});
    if (adapter.division == Division::columns && !beside.scatters_result)
      leave(call, adapter, h);
    else
      add_low_rank(call, call, adapter, h);
  }

  /// h = the rows of A of the tokens, then the lookup itself, then what B adds to it.
  void add_lookup(const Call& call, const Adapter& adapter) {
    const int h =
        add(call, kLookup, ".A", {}, {.weights = {call_weight(adapter.a)}, .attributes = call.attributes});
    rewriter_.replace(call, call);
    if (adapter.division == Division::rows)
      leave(call, adapter, h);
    else
      add_low_rank(call, call, adapter, h);
  }

  /// The results of the call and of A are shares of sums: they leave, and are added afterwards.
  void leave(const Call& call, const Adapter& adapter, int h) {
    leaving_ = &adapter;
    left_ = call.results.front();
    left_h_ = h;
  }

  void add_exchange(const Call& call) {
    Call beside = rewriter_.moved(call);
    beside.operands = {left_h_};
    beside.name += ".A";
    const int h = rewriter_.add(std::move(beside));
    rewriter_.replace(call, rewriter_.moved(call));
    const auto product = std::ranges::find_if(
        list_.calls, [&](const Call& other) { return std::ranges::count(other.results, left_) > 0; });
    add_low_rank(*product, call, *std::exchange(leaving_, nullptr), h);
  }

  /// `made`: the call whose result gets what B adds.
  void add_low_rank(const Call& product, const Call& made, const Adapter& adapter, int h) {
    int& y = rewriter_.place(made.results.front());
    Call call{.attributes = adapter.low_rank,
              .sums_weight_gradients = adapter.sums && rewriter_.value(h).rows == Rows::slice};
    for (const ParameterSpec& b : adapter.b) call.weights.push_back(call_weight(b));
    y = add(product, kLowRank, ".B", {h, y}, std::move(call));
    if (!adapter.magnitudes.empty()) add_magnitude(product, adapter, y);
  }

  /// The same of the rows of experts: h is gathered as y is. An A of all experts multiplies each token once.
  void add_expert_in(const Call& call, const Adapter& adapter) {
    const Call moved = rewriter_.moved(call);
    const CallWeight a = call_weight(adapter.a);
    int h = -1;
    if (adapter.shared_a) {
      std::vector<int> operands = moved.operands;
      operands.front() = add(call, kLinear, ".A", {operands.front()}, {.weights = {a}});
      h = add(call, kTakeRows, ".rows", std::move(operands), {.attributes = call.attributes});
    } else {
      h = add(call, kExpertIn, ".A", moved.operands, {.weights = {a}, .attributes = call.attributes});
    }
    rewriter_.replace(call, moved);
    add_b_of_experts(call, adapter, h, moved.operands.at(kExpertsOperand));
  }

  /// What B, and the magnitudes, make of the rows that are the result of `call`.
  void add_b_of_experts(const Call& call, const Adapter& adapter, int h, int experts) {
    int& y = rewriter_.place(call.results.front());
    Call call_b{.attributes = adapter.low_rank};
    for (const ParameterSpec& b : adapter.b) call_b.weights.push_back(call_weight(b));
    y = add(call, kLowRank, ".B", {h, y, experts}, std::move(call_b));
    if (!adapter.magnitudes.empty()) add_magnitude(call, adapter, y, {experts});
  }

  /// h = A x of rows of experts, times a scale.
  int add_a_of_rows(const Call& call, const Adapter& adapter, int x, int experts, double scale) {
    std::vector<int> operands = {x};
    if (!adapter.shared_a) operands.push_back(experts);
    const ExpertRowsAttributes attributes{adapter.shared_a ? 1 : adapter.low_rank.experts, scale};
    return add(call, kExpertRows, ".A", std::move(operands),
               {.weights = {call_weight(adapter.a)}, .attributes = attributes});
  }

  /// What B makes of the rows is combined, and then added.
  void add_expert_out(const Call& call, const Adapter& adapter) {
    if (!adapter.magnitudes.empty()) return add_scaled_rows(call, adapter);
    const Call moved = rewriter_.moved(call);
    std::vector<int> operands = moved.operands;
    operands.front() = add_a_of_rows(call, adapter, operands.front(), operands.at(kExpertsOperand),
                                     adapter.low_rank.parts.front().scale);
    rewriter_.replace(call, moved);
    int& y = rewriter_.place(call.results.front());
    const int added = add(call, kExpertOut, ".B", std::move(operands),
                          {.weights = {call_weight(adapter.b.front())}, .attributes = call.attributes});
    y = add(call, kAdd, ".sum", {y, added});
  }

  /// The rows are scaled, each by the magnitudes of its expert, before they are combined.
  void add_scaled_rows(const Call& call, const Adapter& adapter) {
    std::vector<int> operands = rewriter_.moved(call).operands;
    const int x = operands.front();
    const int experts = operands.at(kExpertsOperand);
    const int h = add_a_of_rows(call, adapter, x, experts, 1.0);
    Call rows = call;
    rows.kind = &kExpertRows;
    rows.operands = {x, experts};
    rows.results.clear();
    rows.attributes = ExpertRowsAttributes{adapter.low_rank.experts, 1.0};
    rewriter_.replace(call, std::move(rows));
    add_b_of_experts(call, adapter, h, experts);
    int& y = rewriter_.place(call.results.front());
    operands.front() = y;
    y = add(call, kSumRows, ".sum", std::move(operands), {.attributes = call.attributes});
  }

  /// `experts`: which each row belongs to, if W is that of experts.
  void add_magnitude(const Call& product, const Adapter& adapter, int& y,
                     const std::vector<int>& experts = {}) {
    Call call{.attributes = MagnitudeAttributes{adapter.low_rank.parts, adapter.division == Division::columns,
                                                adapter.low_rank.experts},
              .sums_weight_gradients = adapter.sums && rewriter_.value(y).rows == Rows::slice};
    for (const ParameterSpec& magnitude : adapter.magnitudes) call.weights.push_back(call_weight(magnitude));
    call.weights.push_back(constant_weight(product.weights.front()));
    call.weights.push_back(constant_weight(call_weight(adapter.a)));
    for (const ParameterSpec& b : adapter.b) call.weights.push_back(constant_weight(call_weight(b)));
    std::vector<int> operands = {y};
    operands.insert(operands.end(), experts.begin(), experts.end());
    y = add(product, kMagnitude, ".magnitude", std::move(operands), std::move(call));
  }

  const CallList& list_;
  const Adapters& adapters_;
  bool dropout_;
  Rewriter rewriter_;
  const Adapter* leaving_ = nullptr;  ///< of a product whose result is exchanged next
  int left_ = -1;                     ///< this result
  int left_h_ = -1;
};

}  // namespace

std::string adapted_name(const Call& call) {
  if (call.is(kLoss)) return kAdaptedHead;
  return multiplies(call) || call.is(kLookup) ? call.weights.front().name : "";
}

bool multiplies(const Call& call) {
  return call.is(kLinear) || call.is(kExpertIn) || call.is(kExpertOut);
}

CallList write_adapters(const CallList& list, const Adapters& adapters, bool dropout) {
  return AdapterWriter(list, adapters, dropout).write();
}

}  // namespace stepforge
