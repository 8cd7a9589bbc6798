// SPDX-License-Identifier: Apache-2.0
// One rank's part of a checkpoint: a copy in host memory, unaffected by later changes of the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/base/tensor_slice.h"
#include "stepforge/checkpoint/shard_slices.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/optim/optimizer.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// Copies of this object share the tensors' memory, which none of them changes.
class StagedCheckpoint {
 public:
  /// The bytes of this rank's parts of all tensors.
  int64_t bytes() const;
  bool has_optimizer() const;
  const Json& state() const { return state_; }

  /// Writes the safetensors files of rank `rank` of `ranks` into `folder`, flushes them to the disk, and
  /// returns their names. Throws Error if writing fails.
  std::vector<std::string> write_tensors(const std::filesystem::path& folder, int rank, int ranks) const;

 private:
  struct Part {
    std::string name;
    DType dtype;
    TensorSlice slice;
    size_t begin = 0;  // byte offset in memory_
    size_t bytes = 0;
  };
  /// The parts in each file of one kind: a file can hold only one part of a tensor.
  using Files = std::vector<std::vector<Part>>;

  friend StagedCheckpoint stage_checkpoint(const ModelSpec&, const ModelStore&, const Optimizer*, Json,
                                           StagedCheckpoint);
  void reserve(size_t bytes);
  /// The slices of a tensor that this rank saves, and their values.
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<std::pair<TensorSlice, at::Tensor>> parts;
  };
  void add(Files& files, const Tensor& tensor);

  std::shared_ptr<std::byte[]> memory_;
  size_t capacity_ = 0;
  size_t used_ = 0;
  Files model_;
  Files optimizer_;
  Json state_;
};

/// Copies this rank's share of masters, of moments (unless `optimizer` is null) and `state`, a JSON object to which
/// "optimizer_steps" is added. Frozen weights that the state names (frozen_weights.h) are left out. `model` is what this
/// rank holds, like `store`. No rank waits for another. Replicas divide the slices that they all hold; a rank leaves
/// tensors that it does not count (UnitLayout::counted), such as its copy of a tied embedding, to another. Pass the previous
/// result as `reused`: unless a copy of it still exists, its memory is used again, so that nothing large is allocated after
/// the first save. Throws Error if `state` is not an object.
StagedCheckpoint stage_checkpoint(const ModelSpec& model, const ModelStore& store, const Optimizer* optimizer,
                                  Json state, StagedCheckpoint reused = {});

}  // namespace stepforge
