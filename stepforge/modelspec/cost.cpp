// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/cost.h"

#include <algorithm>
#include <utility>

namespace stepforge {

namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int64_t bytes(const Elements& elements, const CostContext& context) {
  return elements.bytes(context.tokens, context.compute, context.slices);
}

/// The result of a region is that of its last call with a result; calls without one work in place.
int64_t output_bytes(const RegionSpec& region, const CostContext& context) {
  for (auto call = region.calls.rbegin(); call != region.calls.rend(); ++call)
    if (const int64_t output = bytes(call->output, context); output > 0) return output;
  return 0;
}

int64_t saved_bytes(const RegionSpec& region, const CostContext& context) {
  int64_t sum = 0;
  for (const CallSpec& call : region.calls) sum += bytes(call.saves, context);
  return sum;
}

double forward_flops(const RegionSpec& region, const CostContext& context) {
  const auto tokens = static_cast<double>(context.tokens);
  double sum = 0;
  for (const CallSpec& call : region.calls)
    sum +=
        tokens * (call.flops + call.flops_per_key * static_cast<double>(call.keys(context.document_length)));
  return sum;
}

/// Of the gradients of weights: another product of the same size.
double weight_flops(const RegionSpec& region, const CostContext& context) {
  double sum = 0;
  for (const CallSpec& call : region.calls)
    if (call.rule == TypeRule::linear || call.rule == TypeRule::loss)
      sum += static_cast<double>(context.tokens) * call.flops;
  return sum;
}

void add_exchanges(std::array<int64_t, kBlockAxes>& sums, int64_t& beside,
                   const std::vector<Exchange>& exchanges, const CostContext& context) {
  for (const Exchange& exchange : exchanges) {
    const int64_t sent = bytes(exchange.elements, context) + exchange.weight_bytes;
    sums.at(static_cast<std::size_t>(exchange.axis)) += sent;
    if (exchange.beside) beside += sent;
  }
}

/// Peak of the bytes in flight while the region runs, without its input. Results of all its calls live until
/// it returns, because its local variables hold them; statistics only if a graph keeps them.
int64_t region_forward_peak(const RegionSpec& region, const CostContext& context, bool graph) {
  int64_t live = 0;
  int64_t peak = 0;
  for (const CallSpec& call : region.calls) {
    const int64_t extra = bytes(call.extra, context);
    live += bytes(call.output, context) + extra;
    peak = std::max(peak, live + call.forward_workspace.bytes(context));
    live -= graph ? 0 : extra;
  }
  return peak;
}

/// Bytes of a region that live after it has returned, and whether its calls keep a graph.
struct Kept {
  int64_t bytes = 0;
  bool graph = false;
};

/// Runs one region after the other; the result of a region lives until the next one returns.
int64_t block_forward_peak(const std::vector<RegionSpec>& regions, const CostContext& context,
                           const std::vector<Kept>& kept) {
  int64_t stays = 0;
  int64_t input = 0;  // of the current region; the input of the block is not counted
  int64_t peak = 0;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    peak = std::max(peak, stays + input + region_forward_peak(regions[i], context, kept[i].graph));
    stays += kept[i].bytes;
    input = output_bytes(regions[i], context);
  }
  return std::max(peak, stays + input);
}

/// Whether the gradients of its weights are computed from that of its result.
bool keeps_gradient(const CallSpec& call) {
  return call.rule == TypeRule::linear || call.rule == TypeRule::lookup;
}

/// Runs the regions backward. `live_` counts from the beginning, so it falls below 0 as saved tensors are
/// freed.
class BackwardWalk {
 public:
  /// `queue`: whether gradients of weights are queued. `incoming`: bytes of the gradient of the block's result,
  /// which the caller frees.
  BackwardWalk(const CostContext& context, bool queue, int64_t incoming)
      : context_(context), queue_(queue), incoming_{incoming, 0} {}

  /// Returns whether the queue keeps the incoming gradient of the region.
  bool run(const RegionSpec& region) {
    const Incoming into_region = incoming_;
    bool inside = false;  // whether a call of the region has its own gradient
    bool kept = false;
    for (auto call = region.calls.rbegin(); call != region.calls.rend(); ++call) {
      const int64_t gradient = bytes(call->gradient, context_);
      count_peaks(*call, gradient);
      const bool keeps = queue_ && keeps_gradient(*call);
      keep(*call, keeps ? incoming_.bytes : 0);
      kept = kept || (keeps && !inside);
      live_ += gradient - bytes(call->saves, context_);
      if (gradient == 0) continue;
      const bool held = keeps || (region.residual && !inside);
      live_ -= held ? 0 : incoming_.freed;
      incoming_ = {gradient, gradient};
      inside = true;
    }
    if (region.residual && inside && !kept) live_ -= into_region.freed;
    return kept;
  }

  /// Runs the region's forward pass again, then its backward pass. `input`: bytes of its input, which its
  /// saves include.
  void run_again(const RegionSpec& region, int64_t input) {
    peak_ = std::max(peak_, live_ + region_forward_peak(region, context_, /*graph=*/true));
    const int64_t result = output_bytes(region, context_);
    const int64_t into_region =
        std::exchange(incoming_.freed, 0);  // like that of a block, freed by the caller
    live_ += saved_bytes(region, context_) - input + result;
    const bool kept = run(region);
    live_ -= result + (kept ? 0 : into_region);
  }

  int64_t peak() const { return peak_; }
  int64_t queued() const { return queued_; }
  int64_t weight_peak() const { return weight_peak_; }

 private:
  /// The incoming gradient of the next call.
  struct Incoming {
    int64_t bytes = 0;
    int64_t freed = 0;  ///< by that call
  };

  void count_peaks(const CallSpec& call, int64_t gradient) {
    const int64_t input = gradient + call.backward_workspace.bytes(context_);
    const int64_t weights = call.weight_workspace.bytes(context_);
    const int64_t kept = call.queued.bytes(context_);
    const int64_t at_once = call.weights_beside ? input + weights : std::max(input, weights);
    peak_ = std::max(peak_, live_ + (queue_ ? input + kept : at_once));
    weight_peak_ = std::max(weight_peak_, weights - kept - queued_);
  }

  void keep(const CallSpec& call, int64_t gradient) {
    if (!queue_) return;
    const int64_t kept = bytes(call.queued_saves, context_) + call.queued.bytes(context_);
    live_ += kept;
    queued_ += kept + bytes(call.queued_input, context_) + gradient;
  }

  const CostContext& context_;
  bool queue_;
  Incoming incoming_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
  int64_t queued_ = 0;
  int64_t weight_peak_ = 0;
};

}  // namespace

std::string_view axis_name(BlockAxis axis) {
  constexpr std::array<std::string_view, kBlockAxes> kNames = {"tensor", "context", "heads", "experts"};
  return kNames.at(static_cast<std::size_t>(axis));
}

std::string_view exchange_name(ExchangeKind kind) {
  constexpr std::array<std::string_view, 7> kNames = {"sum",   "max",        "gather", "sum of slices",
                                                      "slice", "all-to-all", "shift"};
  return kNames.at(static_cast<std::size_t>(kind));
}

int64_t Workspace::bytes(const CostContext& context) const {
  const int64_t narrow_bytes =
      context.compute == DType::f32 ? 0 : narrow * static_cast<int64_t>(dtype_bytes(context.compute));
  const int64_t document = std::max<int64_t>(1, context.document_length);
  const int64_t tokens = context.tokens * context.parts;
  const int64_t tasks = (tokens + document - 1) / document * tasks_per_document;
  const int64_t threads = std::clamp<int64_t>(context.threads, 1, std::max<int64_t>(tasks, 1));
  return token.bytes(context.tokens, context.compute, context.slices) +
         chunk_token.bytes(std::min(chunk, context.tokens), context.compute) + narrow_bytes +
         fixed_fp32 * static_cast<int64_t>(sizeof(float)) +
         threads * (thread_bytes + thread_bytes_per_key * context.document_length);
}

BlockCost block_cost(const std::vector<RegionSpec>& regions, const CostContext& context,
                     const std::vector<std::string>& recomputed) {
  BlockCost cost;
  std::vector<Kept> kept;  // of each region, from forward to backward
  double recomputed_flops = 0;
  for (const RegionSpec& region : regions) {
    const bool again = contains(recomputed, region.name);
    for (const CallSpec& call : region.calls) {
      add_exchanges(cost.forward_exchange, cost.forward_beside, call.forward_exchanges, context);
      const auto in_backward = [&](const std::vector<Exchange>& exchanges) {
        add_exchanges(cost.backward_exchange, cost.backward_beside, exchanges, context);
      };
      in_backward(call.backward_exchanges);
      if (again) in_backward(call.forward_exchanges);
      if (!again) cost.queued_saved_bytes += bytes(call.queued_saves, context);
    }
    if (again) {
      kept.push_back({cost.output_bytes, false});
      recomputed_flops += forward_flops(region, context);
    } else {
      kept.push_back({saved_bytes(region, context), true});
    }
    cost.saved_bytes += kept.back().bytes;
    cost.forward_flops += forward_flops(region, context);
    cost.backward_weight_flops += weight_flops(region, context);
    cost.output_bytes = output_bytes(region, context);
  }
  cost.backward_input_flops = 2 * cost.forward_flops - cost.backward_weight_flops + recomputed_flops;
  cost.backward_flops = cost.backward_input_flops + cost.backward_weight_flops;
  cost.forward_peak_bytes = block_forward_peak(regions, context, kept);
  cost.inference_peak_bytes = block_forward_peak(regions, context, std::vector<Kept>(regions.size()));

  const auto backward = [&](bool queue) {
    BackwardWalk walk(context, queue, cost.output_bytes);
    for (std::size_t i = regions.size(); i-- > 0;)
      if (contains(recomputed, regions[i].name))
        walk.run_again(regions[i], kept[i].bytes);
      else
        walk.run(regions[i]);
    return walk;
  };
  cost.backward_peak_bytes = backward(/*queue=*/false).peak();
  const BackwardWalk queued = backward(/*queue=*/true);
  cost.backward_input_peak_bytes = queued.peak();
  cost.backward_weight_peak_bytes = queued.weight_peak();
  cost.queued_bytes = queued.queued();
  return cost;
}

}  // namespace stepforge
