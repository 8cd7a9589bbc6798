// SPDX-License-Identifier: Apache-2.0
// PiSSA (arXiv:2404.02948): the adapter of a matrix W starts as the largest singular parts of W, and the frozen weight is W without
// them, so that the run begins as the model. Without these first values, A and B of a run mean nothing: the run folder keeps them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "stepforge/base/tensor_slice.h"
#include "stepforge/checkpoint/checkpoint_ranks.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

/// Of a run: a folder of safetensors files with A and B of each module under the names of PEFT, fp32.
inline constexpr const char* kInitialAdapterFolder = "initial_adapter";

/// scale * B A, which a matrix is without.
struct TakenPart {
  at::Tensor a;  ///< [rank, columns] fp32
  at::Tensor b;  ///< [rows, rank] fp32, scaled

  /// Subtracts it from `values`, fp32 on the host: elements [begin, begin + size) of `slice` of the matrix, in row-major order. Each
  /// element has the same bits in whatever slice it is.
  void take_from(const TensorSlice& slice, int64_t begin, const at::Tensor& values) const;
};

/// The first values of an adapter.
class InitialAdapter {
 public:
  InitialAdapter(AdapterConfig config, TensorFolder factors);

  const TensorFolder& factors() const { return factors_; }
  /// Nothing if the weight has no adapter.
  std::optional<TakenPart> part_of(const std::string& weight) const;

 private:
  AdapterConfig config_;
  TensorFolder factors_;
};

/// Of the files of the run in `run_folder`. Throws UsageError if they are missing.
std::string initial_adapter_hash(const std::filesystem::path& run_folder);

/// Those of the run in `run_folder`, nothing if its adapters took nothing; `model` has the adapters of `config`; `hash` is that of
/// its checkpoint, or "". Throws UsageError if they are missing or have another hash, Error if they are those of another model.
std::optional<InitialAdapter> initial_adapter_of(const std::filesystem::path& run_folder,
                                                 const AdapterConfig& config, const ModelSpec& model,
                                                 const std::string& hash = "");

/// Of W = U S V, with the r largest singular values, A = sqrt(S / scale) V and B = U sqrt(S / scale), as PEFT has them. With
/// `iterations` > 0 they are those of W in a subspace that these bring close to the largest ones (arXiv:0909.4061).
struct Factors {
  at::Tensor a;  ///< [rank, columns]
  at::Tensor b;  ///< [rows, rank]
};
Factors principal_factors(const at::Tensor& weight, int64_t rank, double scale, int64_t iterations = 0);

/// Computes those of a new run from the weights of `open`, each rank those of some matrices, and puts them into `run_folder`, in
/// place of what is there. `stop` is called before each round, in which every rank has one matrix, with the numbers of matrices that are
/// done and of all; throws Error on all ranks if it returns true on one. Throws UsageError if a matrix is missing, or has fewer rows or
/// columns than the rank.
void write_initial_adapter(const std::filesystem::path& run_folder, const AdapterConfig& adapter,
                           const ModelSpec& model, const std::function<TensorFolder()>& open,
                           const CheckpointRanks& ranks,
                           const std::function<bool(int64_t done, int64_t all)>& stop);

/// Copies those of another run. Throws UsageError if they are missing.
void copy_initial_adapter(const std::filesystem::path& from_run, const std::filesystem::path& run_folder,
                          const CheckpointRanks& ranks);

}  // namespace stepforge
