// SPDX-License-Identifier: Apache-2.0
// What every block gets along with its input: the micro-batch's tokens and document boundaries, the dropout
// key, the KV cache.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/data/batch.h"
#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/dropout_add.h"

namespace stepforge {

class DistillationStep;
class KvCache;
class PreferenceStep;
class RouterStep;

/// A batch with its tensors: views of the host's vectors on the CPU; on another device, parts of one copy of them all.
struct BatchTensors {
  /// The copy to another device is ordered on the thread's current stream, and the host does not wait for it.
  explicit BatchTensors(Batch host_batch, at::Device device = at::kCPU);
  BatchTensors(BatchTensors&&) = default;
  BatchTensors& operator=(BatchTensors&&) = default;
  BatchTensors(const BatchTensors&) = delete;
  BatchTensors& operator=(const BatchTensors&) = delete;

  Batch host;
  at::Tensor tokens;                      ///< [rows * seq_len] int32
  std::vector<at::Tensor> tokens_ahead;   ///< the same of host.ahead, kNoToken where there is no such token
  at::Tensor positions;                   ///< [rows * seq_len] int32, restarting at document boundaries
  at::Tensor labels;                      ///< [rows * seq_len] int32, -100 = ignored
  at::Tensor weights;                     ///< [rows * seq_len] fp32: of the labels; undefined if all weigh 1
  at::Tensor row_ids;                     ///< [rows * seq_len] int64: global row of each token
  at::Tensor row_positions;               ///< [rows * seq_len] int32: position of each token in its row
  std::vector<AttentionRange> documents;  ///< of the whole rows, each with all its queries and keys
  /// The queries of the tokens that this rank attends for (host.part.joined()) with all keys of their documents,
  /// in the order of whole rows.
  std::vector<AttentionRange> attention_ranges;
  /// With context parallelism, int64: of each token of the whole rows its index in the parts of all ranks, rank
  /// after rank, and the other way round; if neighbours attend together, only of theirs.
  at::Tensor index_in_parts;
  at::Tensor index_in_rows;
  /// The same queries with the keys that joined part `part` has, of the same documents; without those that see
  /// none.
  std::vector<AttentionRange> ranges_to(int64_t part) const;
  int64_t token_count() const { return host.rows * host.seq_len; }

 private:
  void index_parts();
  void move_to(at::Device device);
};

/// Which logits a head keeps in LossResult.
struct TopLogits {
  int64_t count = 0;       ///< of each token, the largest ones; 0: none
  int64_t vocabulary = 0;  ///< among the first ones, that many
};

struct Context {
  const BatchTensors* batch = nullptr;
  double dropout = 0.0;
  double adapter_dropout = 0.0;                 ///< of the inputs of adapters
  DropoutKey dropout_key;                       ///< of the step; each site derives its own
  KvCache* cache = nullptr;                     ///< set during generation only
  RouterStep* routers = nullptr;                ///< of the micro-batch (router_step.h); set in training only
  const PreferenceStep* preferences = nullptr;  ///< of the micro-batch; set in training on pairs only
  const DistillationStep* distillation = nullptr;   ///< likewise, in training with a teacher only
  TopLogits top = {};                               ///< set in evaluation only
  std::span<const std::string> recomputed_regions;  ///< and calls, of the running block
};

}  // namespace stepforge
