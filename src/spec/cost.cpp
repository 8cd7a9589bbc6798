#include "spec/cost.h"

#include <algorithm>

namespace stepforge {

namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int64_t bytes(const Elements& elements, const CostContext& context) {
  return elements.bytes(context.tokens, context.compute);
}

/// A segment's result is the result of its last call that makes one; calls without a result work in place.
int64_t output_bytes(const SegmentCost& segment, const CostContext& context) {
  for (auto op = segment.ops.rbegin(); op != segment.ops.rend(); ++op) {
    if (const int64_t output = bytes(op->output, context); output > 0) {
      return output;
    }
  }
  return 0;
}

int64_t saved_bytes(const SegmentCost& segment, const CostContext& context) {
  int64_t sum = 0;
  for (const OpCost& op : segment.ops) {
    sum += bytes(op.saves, context);
  }
  return sum;
}

double forward_flops(const SegmentCost& segment, const CostContext& context) {
  const auto tokens = static_cast<double>(context.tokens);
  double sum = 0;
  for (const OpCost& op : segment.ops) {
    sum += tokens * (op.flops + op.flops_per_key * static_cast<double>(context.document_length));
  }
  return sum;
}

/// Most bytes in flight while the segment runs, above its input: results and statistics of all its calls live
/// until it returns, since its local variables hold them.
int64_t segment_forward_peak(const SegmentCost& segment, const CostContext& context) {
  int64_t live = 0;
  int64_t peak = 0;
  for (const OpCost& op : segment.ops) {
    live += bytes(op.output, context) + bytes(op.extra, context);
    peak = std::max(peak, live + bytes(op.forward_workspace, context) + op.forward_workspace_bytes);
  }
  return peak;
}

/// One segment after the other. kept[i] bytes stay when segment i has returned; its result until the next
/// returns.
int64_t block_forward_peak(const std::vector<SegmentCost>& segments, const CostContext& context,
                           const std::vector<int64_t>& kept) {
  int64_t stays = 0;
  int64_t input = 0;  // of the segment at hand; the block's own input is not counted
  int64_t peak = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    peak = std::max(peak, stays + input + segment_forward_peak(segments[i], context));
    stays += kept[i];
    input = output_bytes(segments[i], context);
  }
  return std::max(peak, stays + input);
}

/// The walk of the backward pass. `live` counts from its beginning, so it falls below 0 as saved tensors are
/// freed.
class BackwardWalk {
 public:
  BackwardWalk(const CostContext& context, int64_t incoming) : context_(context), incoming_(incoming) {}

  /// Runs the segment's forward again; then its saved tensors are there.
  void recompute(const SegmentCost& segment) {
    peak_ = std::max(peak_, live_ + segment_forward_peak(segment, context_));
    live_ += saved_bytes(segment, context_);
  }

  void run(const SegmentCost& segment) {
    const int64_t into_segment = incoming_;
    bool inside_branch = false;
    for (auto op = segment.ops.rbegin(); op != segment.ops.rend(); ++op) {
      const int64_t gradient = bytes(op->gradient, context_);
      peak_ = std::max(
          peak_, live_ + gradient + bytes(op->backward_workspace, context_) + op->backward_workspace_bytes);
      live_ += gradient - bytes(op->saves, context_);
      if (gradient == 0) {
        continue;
      }
      const bool is_residual_gradient = segment.residual && !inside_branch;
      live_ -= is_residual_gradient ? 0 : incoming_;
      incoming_ = gradient;
      inside_branch = true;
    }
    if (segment.residual && inside_branch) {
      live_ -= into_segment;
    }
  }

  void free(int64_t freed) { live_ -= freed; }
  int64_t peak() const { return peak_; }

 private:
  const CostContext& context_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
  int64_t incoming_ = 0;  // bytes of the gradient that flows into the next call
};

}  // namespace

BlockCost block_cost(const std::vector<SegmentCost>& segments, const CostContext& context,
                     const std::vector<std::string>& recomputed) {
  BlockCost cost;
  std::vector<int64_t> kept;  // of each segment, from forward to backward
  double recomputed_flops = 0;
  for (const SegmentCost& segment : segments) {
    if (contains(recomputed, segment.name)) {
      kept.push_back(cost.output_bytes);
      recomputed_flops += forward_flops(segment, context);
    } else {
      kept.push_back(saved_bytes(segment, context));
    }
    cost.saved_bytes += kept.back();
    cost.forward_flops += forward_flops(segment, context);
    cost.output_bytes = output_bytes(segment, context);
  }
  cost.backward_flops = 2 * cost.forward_flops + recomputed_flops;
  cost.forward_peak_bytes = block_forward_peak(segments, context, kept);
  cost.inference_peak_bytes = block_forward_peak(segments, context, std::vector<int64_t>(segments.size(), 0));

  BackwardWalk walk(context, cost.output_bytes);
  for (std::size_t i = segments.size(); i-- > 0;) {
    const bool again = contains(recomputed, segments[i].name);
    if (again) {
      walk.recompute(segments[i]);
    }
    walk.run(segments[i]);
    if (again) {
      walk.free(kept[i]);
    }
  }
  cost.backward_peak_bytes = walk.peak();
  return cost;
}

}  // namespace stepforge
