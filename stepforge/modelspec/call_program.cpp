// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_program.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace stepforge {

namespace {

template <typename List>
decltype(auto) at(List& list, int index) {
  return list[static_cast<std::size_t>(index)];
}

bool has_bit(uint32_t bits, std::size_t index) {
  return (bits >> index & 1U) != 0;
}

/// Each buffer is free after the last step that reads or writes it, unless it is `kept`.
void add_frees(std::vector<CallStep>& steps, const std::vector<bool>& kept) {
  std::vector<bool> seen = kept;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    for (const std::vector<int>* touched : {&step->reads, &step->writes}) {
      for (const int buffer : *touched) {
        if (buffer == kNoTensor || at(seen, buffer)) continue;
        at(seen, buffer) = true;
        step->frees.push_back(buffer);
      }
    }
  }
}

class Deriver {
 public:
  Deriver(const CallList& list, const std::vector<CallInfo>& calls, bool trains)
      : list_(list), calls_(calls), values_(list.values.size()) {
    for (std::size_t c = 0; c < calls_.size(); ++c)
      for (const int result : calls_[c].call->results) at(values_, result).maker = static_cast<int>(c);
    for (const int input : list.inputs) at(values_, input).outside = true;
    for (const int output : list.outputs) at(values_, output).outside = true;
    if (trains) find_kept();
    find_last_uses();
  }

  BlockProgram derive(bool trains) {
    program_.buffers.reserve(2 * values_.size());
    program_.forward.reserve(calls_.size());
    program_.backward.reserve(trains ? calls_.size() : 0);
    forward();
    if (trains) backward();
    return std::move(program_);
  }

  std::vector<bool> values_read() const {
    std::vector<bool> read(values_.size());
    for (const CallInfo& info : calls_)
      if (is_active(info)) for_each_read(info, [&](int value) { at(read, value) = true; });
    return read;
  }

 private:
  struct ValueState {
    int maker = -1;          ///< the call that makes it; -1: an input
    bool active = false;     ///< a gradient flows to it
    bool read_back = false;  ///< a derivative reads it
    bool saved = false;
    bool outside = false;  ///< an input or output
    int again_uses = 0;    ///< calls made again that read it
    int last_use = -1;     ///< the last call of forward that reads its memory
    bool pinned = false;   ///< its memory lives beyond the forward pass
    int buffer = kNoTensor;
    int gradient = kNoTensor;
  };

  bool is_active(const CallInfo& info) const {
    return info.call->trains() ||
           std::ranges::any_of(info.call->operands, [&](int v) { return at(values_, v).active; });
  }

  /// The values that derivatives read are saved, or made again from others that are.
  void find_kept() {
    for (const int input : list_.inputs) at(values_, input).active = list_.value(input).differentiable;
    for (const CallInfo& info : calls_)
      for (std::size_t r = 0; r < info.results.size(); ++r)
        at(values_, info.call->results[r]).active = info.results[r].differentiable && is_active(info);
    std::vector<bool> again(calls_.size());
    for (const CallInfo& info : calls_) {
      if (!is_active(info)) continue;
      for_each_read(info, [&](int value) {
        at(values_, value).read_back = true;
        keep(value, again);
      });
    }
  }

  template <typename Visit>
  static void for_each_read(const CallInfo& info, const Visit& visit) {
    const CallValues reads = info.derivative_reads();
    for (std::size_t i = 0; i < info.operands.size(); ++i)
      if (has_bit(reads.operands, i)) visit(info.call->operands[i]);
    for (std::size_t i = 0; i < info.results.size(); ++i)
      if (has_bit(reads.results, i)) visit(info.call->results[i]);
  }

  void keep(int value, std::vector<bool>& again) {
    ValueState& state = at(values_, value);
    if (state.maker < 0 || state.saved) return;
    const CallInfo& maker = at(calls_, state.maker);
    if (!maker.call->recompute) {
      state.saved = true;
      return;
    }
    if (at(again, state.maker)) return;
    at(again, state.maker) = true;
    for (const int operand : maker.call->operands) {
      ++at(values_, operand).again_uses;
      keep(operand, again);
    }
  }

  void find_last_uses() {
    for (ValueState& value : values_) value.pinned = value.saved || value.outside;
    for (std::size_t c = calls_.size(); c-- > 0;) {
      const Call& call = *calls_[c].call;
      for (const int operand : call.operands)
        at(values_, operand).last_use = std::max(at(values_, operand).last_use, static_cast<int>(c));
      if (ValueState* operand = aliased(calls_[c])) {
        const ValueState& result = at(values_, call.results.front());
        operand->last_use = std::max(operand->last_use, result.last_use);
        operand->pinned = operand->pinned || result.pinned;
      }
    }
    // Nor may what overwrites a result that has an operand's memory.
    for (const CallInfo& info : calls_) {
      const ValueState* operand = aliased(info);
      if (operand == nullptr) continue;
      ValueState& result = at(values_, info.call->results.front());
      result.last_use = operand->last_use;
      result.pinned = operand->pinned;
      result.read_back = result.read_back || operand->read_back || operand->pinned || operand->again_uses > 1;
    }
  }

  /// The operand whose memory the first result has; null if there is none.
  ValueState* aliased(const CallInfo& info) {
    const int operand = info.aliases_operand();
    return operand == kNoOperand ? nullptr : &at(values_, at(info.call->operands, operand));
  }

  int new_buffer(int value) {
    program_.buffers.push_back(value);
    return static_cast<int>(program_.buffers.size()) - 1;
  }

  std::vector<int> buffers_of(const std::vector<int>& values) const {
    std::vector<int> found;
    found.reserve(values.size());
    for (const int value : values) found.push_back(at(values_, value).buffer);
    return found;
  }

  /// Writes a call into `steps`, its first result over an operand if `may_overwrite(operand)`.
  template <typename Predicate>
  void compute(std::vector<CallStep>& steps, int index, const Predicate& may_overwrite) {
    const CallInfo& info = at(calls_, index);
    const Call& call = *info.call;
    if (const int same = info.aliases_operand(); same != kNoOperand) {
      at(values_, call.results.front()).buffer = at(values_, at(call.operands, same)).buffer;
      return;
    }
    CallStep step{CallAction::forward, index, buffers_of(call.operands), {}};
    step.writes.reserve(call.results.size());
    const int over = info.overwrites();
    for (std::size_t r = 0; r < call.results.size(); ++r) {
      const bool overwrites =
          r == 0 && over != kNoOperand && at(info.operands, over).has_shape_of(info.results[0]) &&
          std::ranges::count(step.reads, at(step.reads, over)) == 1 && may_overwrite(at(call.operands, over));
      step.writes.push_back(overwrites ? at(step.reads, over) : new_buffer(call.results[r]));
      at(values_, call.results[r]).buffer = step.writes.back();
      if (overwrites) at(values_, at(call.operands, over)).buffer = kNoTensor;
    }
    steps.push_back(std::move(step));
  }

  void forward() {
    for (const int input : list_.inputs) at(values_, input).buffer = new_buffer(input);
    program_.inputs = buffers_of(list_.inputs);
    for (int c = 0; c < static_cast<int>(calls_.size()); ++c)
      compute(program_.forward, c,
              [&](int v) { return at(values_, v).last_use == c && !at(values_, v).pinned; });
    program_.outputs = buffers_of(list_.outputs);
    std::vector<bool> kept(program_.buffers.size());
    for (const ValueState& value : values_) {
      if (value.buffer == kNoTensor || !(value.saved || value.outside)) continue;
      if (value.saved && !at(kept, value.buffer) && std::ranges::count(program_.inputs, value.buffer) == 0)
        program_.saved.push_back(value.buffer);
      at(kept, value.buffer) = true;
    }
    for (const int buffer : program_.outputs) at(kept, buffer) = true;
    std::ranges::sort(program_.saved);
    program_.saved.erase(std::ranges::unique(program_.saved).begin(), program_.saved.end());
    add_frees(program_.forward, kept);
  }

  /// Makes sure that backward has the value.
  void make_again(int value) {
    ValueState& state = at(values_, value);
    if (state.buffer != kNoTensor) return;
    for (const int operand : at(calls_, state.maker).call->operands) make_again(operand);
    compute(program_.backward, state.maker, [&](int v) {
      const ValueState& operand = at(values_, v);
      return operand.maker >= 0 && !operand.saved && !operand.read_back && operand.again_uses == 1;
    });
  }

  void backward() {
    for (ValueState& value : values_)
      if (value.maker >= 0 && !value.saved) value.buffer = kNoTensor;
    for (const int output : list_.outputs)
      program_.output_gradients.push_back(list_.value(output).differentiable ? new_buffer(output)
                                                                             : kNoTensor);
    for (std::size_t i = 0; i < list_.outputs.size(); ++i)
      if (program_.output_gradients[i] != kNoTensor)
        contribute(list_.outputs[i], program_.output_gradients[i]);
    for (int c = static_cast<int>(calls_.size()) - 1; c >= 0; --c)
      if (is_active(at(calls_, c))) differentiate(c);
    for (const int input : list_.inputs) program_.input_gradients.push_back(at(values_, input).gradient);
    std::vector<bool> kept(program_.buffers.size());
    for (const std::vector<int>* outside :
         {&program_.inputs, &program_.output_gradients, &program_.input_gradients})
      for (const int buffer : *outside)
        if (buffer != kNoTensor) at(kept, buffer) = true;
    add_frees(program_.backward, kept);
  }

  /// Whether nothing else needs the memory of a gradient that has just been taken from its value.
  bool is_own(int gradient) const {
    return gradient != held_ && std::ranges::count(program_.output_gradients, gradient) == 0 &&
           std::ranges::count(queued_, gradient) == 0 &&
           std::ranges::none_of(values_, [&](const ValueState& v) { return v.gradient == gradient; });
  }

  void differentiate(int index) {
    const CallInfo& info = at(calls_, index);
    const Call& call = *info.call;
    CallStep step{CallAction::backward, index, {}, {}};
    step.reads.reserve(2 * call.results.size() + call.operands.size() + 1);
    step.writes.reserve(call.operands.size());
    bool any = false;
    for (const int result : call.results) {
      step.reads.push_back(std::exchange(at(values_, result).gradient, kNoTensor));
      any = any || step.reads.back() != kNoTensor;
    }
    if (!any) return;
    const int gradient = step.reads.front();
    for_each_read(info, [&](int value) { make_again(value); });
    const CallValues reads = info.derivative_reads();
    const auto add_reads = [&](const std::vector<int>& values, uint32_t bits) {
      for (std::size_t i = 0; i < values.size(); ++i)
        step.reads.push_back(has_bit(bits, i) ? at(values_, values[i]).buffer : kNoTensor);
    };
    add_reads(call.operands, reads.operands);
    add_reads(call.results, reads.results);
    step.reads.push_back(kNoTensor);  // the summand

    std::vector<std::pair<int, int>> made;  // values and their gradients
    std::vector<int> passed;                // values that take the gradient as it is
    for (std::size_t i = 0; i < call.operands.size(); ++i)
      if (info.passes_gradient(i) && at(values_, call.operands[i]).active) passed.push_back(call.operands[i]);
    for (std::size_t i = 0; i < call.operands.size(); ++i) {
      ValueState& operand = at(values_, call.operands[i]);
      step.writes.push_back(kNoTensor);
      if (!operand.active || info.passes_gradient(i)) continue;
      int summand = kNoTensor;
      if (i == 0 && info.adds_gradient()) summand = std::exchange(operand.gradient, kNoTensor);
      if (summand != kNoTensor) step.reads.back() = summand;
      const bool overwrites = info.kind().gradient_overwrites == static_cast<int>(i) && passed.empty() &&
                              is_own(gradient) && info.operands[i].has_shape_of(info.results[0]);
      step.writes.back() = overwrites                                ? gradient
                           : summand != kNoTensor && is_own(summand) ? summand
                                                                     : new_buffer(call.operands[i]);
      made.emplace_back(call.operands[i], step.writes.back());
    }
    if (!made.empty() || call.trains()) program_.backward.push_back(std::move(step));
    if (info.kind().queued_operands != nullptr && call.trains() && info.kind().queues_gradient(info.view()))
      queued_.push_back(gradient);
    for (const auto& [value, buffer] : made) contribute(value, buffer);
    for (std::size_t i = 0; i < passed.size(); ++i) {
      held_ = i + 1 < passed.size() ? gradient : kNoTensor;
      contribute(passed[i], gradient);
    }
  }

  /// `gradient` is the gradient of the value, or a summand of it if there is one already.
  void contribute(int value, int gradient) {
    ValueState& state = at(values_, value);
    if (!state.active) return;
    const int other = std::exchange(state.gradient, kNoTensor);
    if (other == kNoTensor) {
      state.gradient = gradient;
      return;
    }
    const int sum = is_own(gradient) ? gradient : is_own(other) ? other : new_buffer(value);
    program_.backward.push_back({CallAction::add, -1, {gradient, other}, {sum}});
    state.gradient = sum;
  }

  const CallList& list_;
  const std::vector<CallInfo>& calls_;
  std::vector<ValueState> values_;
  BlockProgram program_;
  int held_ = kNoTensor;     ///< a gradient that further operands take
  std::vector<int> queued_;  ///< gradients that gradients of weights may be computed from later
};

}  // namespace

TypeRule CallInfo::rule() const {
  return kind().stated_rule != nullptr ? kind().stated_rule(view()) : kind().rule;
}

CallWorkspace CallInfo::workspace() const {
  return kind().workspace != nullptr ? kind().workspace(view()) : CallWorkspace();
}

CallExchanges CallInfo::exchanges() const {
  return kind().exchanges != nullptr ? kind().exchanges(view()) : CallExchanges();
}

CallValues CallInfo::derivative_reads() const {
  return kind().derivative_reads != nullptr ? kind().derivative_reads(view()) : CallValues();
}

bool CallInfo::passes_gradient(std::size_t operand) const {
  return kind().passes_gradient != nullptr && has_bit(kind().passes_gradient(view()), operand);
}

bool CallInfo::adds_gradient() const {
  return kind().adds_gradient != nullptr && kind().adds_gradient(view());
}

int CallInfo::aliases_operand() const {
  return kind().aliases_operand != nullptr ? kind().aliases_operand(view()) : kNoOperand;
}

int CallInfo::overwrites() const {
  return kind().overwrites != nullptr ? kind().overwrites(view()) : kNoOperand;
}

std::vector<CallInfo> call_infos(const CallList& list) {
  std::vector<CallInfo> infos;
  infos.reserve(list.calls.size());
  for (const Call& call : list.calls)
    infos.push_back({&call, list.values_of(call.operands), list.values_of(call.results)});
  return infos;
}

BlockProgram derive(const CallList& list, const std::vector<CallInfo>& calls, bool trains) {
  return Deriver(list, calls, trains).derive(trains);
}

std::vector<bool> calls_made_again(const CallList& list) {
  std::vector<bool> again(list.calls.size());
  for (const CallStep& step : derive(list, /*trains=*/true).backward)
    if (step.action == CallAction::forward) at(again, step.call) = true;
  return again;
}

std::vector<bool> values_read_by_derivatives(const CallList& list) {
  return Deriver(list, call_infos(list), /*trains=*/true).values_read();
}

}  // namespace stepforge
