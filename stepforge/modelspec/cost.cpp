#include "stepforge/modelspec/cost.h"

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

/// Most bytes in flight while the segment runs, above its input: results of all its calls live until it
/// returns, since its local variables hold them; statistics only if a graph keeps them.
int64_t segment_forward_peak(const SegmentCost& segment, const CostContext& context, bool graph) {
  int64_t live = 0;
  int64_t peak = 0;
  for (const OpCost& op : segment.ops) {
    const int64_t extra = bytes(op.extra, context);
    live += bytes(op.output, context) + extra;
    peak = std::max(peak, live + op.forward_workspace.bytes(context));
    live -= graph ? 0 : extra;
  }
  return peak;
}

/// What stays of a segment when it has returned, and whether its calls keep a graph.
struct Kept {
  int64_t bytes = 0;
  bool graph = false;
};

/// One segment after the other; a segment's result lives until the next returns.
int64_t block_forward_peak(const std::vector<SegmentCost>& segments, const CostContext& context,
                           const std::vector<Kept>& kept) {
  int64_t stays = 0;
  int64_t input = 0;  // of the segment at hand; the block's own input is not counted
  int64_t peak = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    peak = std::max(peak, stays + input + segment_forward_peak(segments[i], context, kept[i].graph));
    stays += kept[i].bytes;
    input = output_bytes(segments[i], context);
  }
  return std::max(peak, stays + input);
}

/// The walk of the backward pass. `live` counts from its beginning, so it falls below 0 as saved tensors are
/// freed.
class BackwardWalk {
 public:
  explicit BackwardWalk(const CostContext& context) : context_(context) {}

  void run(const SegmentCost& segment) {
    const int64_t into_segment = incoming_;
    bool held = segment.residual;  // until a call of the branch has a gradient of its own
    for (auto op = segment.ops.rbegin(); op != segment.ops.rend(); ++op) {
      const int64_t gradient = bytes(op->gradient, context_);
      peak_ = std::max(peak_, live_ + gradient + op->backward_workspace.bytes(context_));
      live_ += gradient - bytes(op->saves, context_);
      if (gradient == 0) continue;
      live_ -= held ? 0 : incoming_;
      incoming_ = gradient;
      held = false;
    }
    if (segment.residual && !held) live_ -= into_segment;
  }

  /// Runs the segment's forward again, then its backward. `kept`: bytes of its input, which its saves count
  /// too.
  void run_again(const SegmentCost& segment, int64_t kept) {
    peak_ = std::max(peak_, live_ + segment_forward_peak(segment, context_, /*graph=*/true));
    const int64_t result = output_bytes(segment, context_);
    const int64_t into_segment = incoming_;
    live_ += saved_bytes(segment, context_) - kept + result;
    incoming_ = 0;  // its caller's, as a block's is
    run(segment);
    live_ -= result + into_segment;
  }

  int64_t peak() const { return peak_; }

 private:
  const CostContext& context_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
  int64_t incoming_ = 0;  // bytes of the gradient that flows into the next call and is freed by it
};

}  // namespace

int64_t Workspace::bytes(const CostContext& context) const {
  const int64_t narrow_bytes =
      context.compute == DType::f32 ? 0 : narrow * static_cast<int64_t>(dtype_bytes(context.compute));
  const int64_t document = std::max<int64_t>(1, context.document_length);
  const int64_t tasks = (context.tokens + document - 1) / document * tasks_per_document;
  const int64_t threads = std::clamp<int64_t>(context.threads, 1, std::max<int64_t>(tasks, 1));
  return token.bytes(context.tokens, context.compute) +
         chunk_token.bytes(std::min(chunk, context.tokens), context.compute) + narrow_bytes +
         threads * (thread_bytes + thread_bytes_per_key * context.document_length);
}

BlockCost block_cost(const std::vector<SegmentCost>& segments, const CostContext& context,
                     const std::vector<std::string>& recomputed) {
  BlockCost cost;
  std::vector<Kept> kept;  // of each segment, from forward to backward
  double recomputed_flops = 0;
  for (const SegmentCost& segment : segments) {
    if (contains(recomputed, segment.name)) {
      kept.push_back({cost.output_bytes, false});
      recomputed_flops += forward_flops(segment, context);
    } else {
      kept.push_back({saved_bytes(segment, context), true});
    }
    cost.saved_bytes += kept.back().bytes;
    cost.forward_flops += forward_flops(segment, context);
    cost.output_bytes = output_bytes(segment, context);
  }
  cost.backward_flops = 2 * cost.forward_flops + recomputed_flops;
  cost.forward_peak_bytes = block_forward_peak(segments, context, kept);
  cost.inference_peak_bytes = block_forward_peak(segments, context, std::vector<Kept>(segments.size()));

  BackwardWalk walk(context);
  for (std::size_t i = segments.size(); i-- > 0;) {
    if (contains(recomputed, segments[i].name)) {
      walk.run_again(segments[i], kept[i].bytes);
    } else {
      walk.run(segments[i]);
    }
  }
  cost.backward_peak_bytes = walk.peak();
  return cost;
}

}  // namespace stepforge
