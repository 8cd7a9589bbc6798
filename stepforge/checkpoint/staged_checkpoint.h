// SPDX-License-Identifier: Apache-2.0
// One rank's part of a checkpoint: a copy in host memory, unaffected by later changes of the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/file_record.h"
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
  const Json& state() const { return state_; }
  /// Where the copies are, or will be.
  std::span<const std::byte> memory() const { return {memory_.get(), capacity_}; }

  /// Makes the pages of the memory, as make_pages() of staged_memory.h.
  void make_pages(const std::stop_token& stop) const;

  /// Writes the safetensors files of rank `rank` of `ranks` into `folder`, flushes them to the disk, and
  /// returns their records. Throws Error if writing fails.
  std::vector<FileRecord> write_tensors(const std::filesystem::path& folder, int rank, int ranks) const;

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

  friend StagedCheckpoint reserve_checkpoint(const ModelSpec&, const ModelStore&, const Optimizer*,
                                             const Json&);
  friend StagedCheckpoint stage_checkpoint(const ModelSpec&, const ModelStore&, const Optimizer*, Json,
                                           StagedCheckpoint);
  /// The slices of a tensor that this rank saves, and their values.
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<std::pair<TensorSlice, at::Tensor>> parts;
  };
  struct Tensors {
    std::vector<Tensor> masters;
    std::vector<Tensor> slots;
  };
  static Tensors tensors_of(const ModelSpec& model, const ModelStore& store, const Optimizer* optimizer,
                            const Json& state);
  /// Memory for all of them.
  void reserve(const Tensors& tensors);
  void add(Files& files, const Tensor& tensor);

  std::shared_ptr<std::byte[]> memory_;
  size_t capacity_ = 0;
  size_t used_ = 0;
  Files model_;
  Files optimizer_;
  Json state_;
};

/// Only the memory that stage_checkpoint() of the same arguments needs, to be given to it. Of `state` only the frozen
/// weights matter. Throws std::bad_alloc, Error as stage_checkpoint does.
StagedCheckpoint reserve_checkpoint(const ModelSpec& model, const ModelStore& store,
                                    const Optimizer* optimizer, const Json& state);

/// Copies this rank's share of masters, of moments (unless `optimizer` is null) and `state`, a JSON object to which
/// "optimizer_steps" is added. Frozen weights that the state names (frozen_weights.h) are left out. `model` is what this
/// rank holds, like `store`. No rank waits for another. Replicas divide the slices that they all hold; a rank leaves
/// tensors that it does not count (UnitLayout::counted), such as its copy of a tied embedding, to another. Pass the previous
/// result as `reused`: unless a copy of it still exists, its memory is used again, so that nothing large is allocated after
/// the first save. Throws Error if `state` is not an object.
StagedCheckpoint stage_checkpoint(const ModelSpec& model, const ModelStore& store, const Optimizer* optimizer,
                                  Json state, StagedCheckpoint reused = {});

}  // namespace stepforge
