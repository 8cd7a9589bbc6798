// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/initial_adapter.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/mm.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/base/staged.h"
#include "stepforge/catalog/adapter_ranks.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/checkpoint/stored_weight.h"
#include "stepforge/checkpoint/tensor_comparison.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/checkpoint/weight_reader.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kWeight = ".weight";

/// "base_model.model.layers.0.mlp.up_proj.lora_A.weight"
std::string factor_name(std::string_view module, std::string_view end) {
  return format("{}{}{}", kAdapterPrefix, module, end);
}

/// A matrix that is decomposed.
struct AdaptedMatrix {
  std::string module;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t rank = 0;
  double scale = 0.0;
};

std::vector<AdaptedMatrix> adapted_matrices(const ModelSpec& model, const AdapterConfig& config) {
  AdapterRanks ranks(config);
  std::map<std::string, AdaptedMatrix> found;
  for (const NamedTensor& tensor : named_tensors(model)) {
    if (!is_adapter_factor(tensor.name)) continue;
    const std::string module(adapted_module(tensor.name));
    AdaptedMatrix& matrix = found[module];
    matrix.module = module;
    matrix.rank = ranks.rank(module);
    matrix.scale = ranks.scale(module);
    if (tensor.name.ends_with(kSuffixA))
      matrix.columns = tensor.shape.at(1);
    else
      matrix.rows = tensor.shape.at(0);
  }
  std::vector<AdaptedMatrix> matrices;
  for (auto& [module, matrix] : found) matrices.push_back(std::move(matrix));
  return matrices;
}

/// Throws UsageError if the weights lack a matrix, or it has too few singular values.
void require_matrices(const TensorFolder& weights, const std::vector<AdaptedMatrix>& matrices) {
  for (const AdaptedMatrix& matrix : matrices) {
    const std::string name = matrix.module + std::string(kWeight);
    if (!holds_weight(weights, name))
      throw UsageError(format("adapter.init = \"pissa\": the weights have no {} to take a part of", name));
    const std::vector<int64_t> shape = WeightReader(weights, name).shape();
    if (shape != std::vector{matrix.rows, matrix.columns})
      throw UsageError(format("adapter.init = \"pissa\": {} is {}, but {} in the model", name,
                              shape_text(shape), shape_text({matrix.rows, matrix.columns})));
    if (matrix.rank > std::min(matrix.rows, matrix.columns))
      throw UsageError(
          format("adapter.init = \"pissa\": the rank of {} is {}, but the matrix is {}; use a lower rank",
                 matrix.module, matrix.rank, shape_text(shape)));
  }
}

/// What one rank writes, one matrix after the other.
class FactorFile {
 public:
  FactorFile(const fs::path& file, std::vector<AdaptedMatrix> matrices,
             const std::function<TensorFolder()>& open, int64_t iterations)
      : matrices_(std::move(matrices)),
        weights_(open()),
        writer_(file, specs_of(matrices_)),
        iterations_(iterations) {}

  /// Does nothing if there is none left.
  void write_next() {
    if (next_ == matrices_.size()) return;
    const at::NoGradGuard no_grad;
    const AdaptedMatrix& matrix = matrices_[next_++];
    const Factors factors = principal_factors(read_whole(weights_, matrix.module + std::string(kWeight)),
                                              matrix.rank, matrix.scale, iterations_);
    writer_.write(factor_name(matrix.module, kSuffixA), bytes_of(factors.a));
    writer_.write(factor_name(matrix.module, kSuffixB), bytes_of(factors.b));
    if (next_ == matrices_.size()) writer_.finish();
  }

 private:
  static std::vector<TensorSpec> specs_of(const std::vector<AdaptedMatrix>& matrices) {
    std::vector<TensorSpec> specs;
    for (const AdaptedMatrix& matrix : matrices) {
      specs.push_back({factor_name(matrix.module, kSuffixA), DType::f32, {matrix.rank, matrix.columns}});
      specs.push_back({factor_name(matrix.module, kSuffixB), DType::f32, {matrix.rows, matrix.rank}});
    }
    return specs;
  }

  std::vector<AdaptedMatrix> matrices_;
  TensorFolder weights_;
  SafetensorsWriter writer_;
  int64_t iterations_;
  size_t next_ = 0;
};

/// Every `ranks`-th matrix from number `rank` on.
std::vector<AdaptedMatrix> share_of(const std::vector<AdaptedMatrix>& matrices, size_t rank, size_t ranks) {
  std::vector<AdaptedMatrix> share;
  for (size_t i = rank; i < matrices.size(); i += ranks) share.push_back(matrices[i]);
  return share;
}

/// Beside those that are wanted: with them iterations converge faster.
constexpr int64_t kFurtherDirections = 8;

/// Random numbers, the same in every run.
at::Tensor first_directions(int64_t rows, int64_t columns) {
  const at::Tensor values = at::empty({rows, columns}, at::device(at::kCPU).dtype(at::kFloat));
  auto* target = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i)
    target[i] = uniform_float(philox(0, static_cast<uint64_t>(i))[0]) - 0.5F;
  return values;
}

at::Tensor orthonormal(const at::Tensor& columns) {
  return std::get<0>(at::linalg_qr(columns));
}

/// Orthonormal columns [rows, width] near the left singular vectors of the largest singular values.
at::Tensor largest_directions(const at::Tensor& weight, int64_t width, int64_t iterations) {
  at::Tensor q = orthonormal(at::mm(weight, first_directions(weight.size(1), width)));
  for (int64_t i = 0; i < iterations; ++i)
    q = orthonormal(at::mm(weight, orthonormal(at::mm(weight.t(), q))));
  return q;
}

void publish_in_place(StagedFolder& staged, const fs::path& folder) {
  if (fs::exists(fs::symlink_status(folder))) remove_whole_folder(folder);
  staged.publish();
}

/// The files of a folder of initial values, sorted. Throws UsageError if there are none.
std::vector<fs::path> files_of_run(const fs::path& run_folder) {
  const fs::path folder = run_folder / kInitialAdapterFolder;
  std::vector<fs::path> files;
  std::error_code failure;
  if (fs::is_directory(folder, failure))
    for (const fs::path& file : entries_of(folder))
      if (file.extension() == ".safetensors") files.push_back(file);
  if (files.empty()) {
    throw UsageError(
        format("{} is missing: the adapter of the run started with parts of the weights (adapter.init = "
               "\"pissa\"), which are there; put the folder back beside the checkpoints",
               folder.string()));
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

void TakenPart::take_from(const TensorSlice& slice, int64_t begin, const at::Tensor& values) const {
  if (values.numel() == 0) return;
  const int64_t width = slice.sizes.at(1);
  const int64_t end = begin + values.numel();
  const int64_t rank = a.size(0);
  const int64_t columns = a.size(1);
  const auto* a_values = a.const_data_ptr<float>();
  const auto* b_values = b.const_data_ptr<float>();
  auto* target = values.mutable_data_ptr<float>();
  at::parallel_for(begin / width, (end + width - 1) / width, 1, [&](int64_t first, int64_t last) {
    std::vector<double> sums(static_cast<size_t>(width));
    for (int64_t row = first; row < last; ++row) {
      const int64_t from = std::max(begin, row * width);
      const int64_t count = std::min(end, (row + 1) * width) - from;
      const auto* b_row = b_values + (slice.offsets.at(0) + row) * rank;
      const auto* a_row = a_values + slice.offsets.at(1) + from - row * width;
      std::fill_n(sums.begin(), count, 0.0);
      // Products of floats are exact as doubles, and each sum has one order, so that slices do not matter.
      for (int64_t k = 0; k < rank; ++k)
        for (int64_t i = 0; i < count; ++i)
          sums[static_cast<size_t>(i)] +=
              static_cast<double>(b_row[k]) * static_cast<double>(a_row[k * columns + i]);
      float* result = target + (from - begin);
      for (int64_t i = 0; i < count; ++i)
        result[i] = static_cast<float>(static_cast<double>(result[i]) - sums[static_cast<size_t>(i)]);
    }
  });
}

InitialAdapter::InitialAdapter(AdapterConfig config, TensorFolder factors)
    : config_(std::move(config)), factors_(std::move(factors)) {}

std::optional<TakenPart> InitialAdapter::part_of(const std::string& weight) const {
  const at::NoGradGuard no_grad;
  if (!weight.ends_with(kWeight)) return std::nullopt;
  const std::string module = weight.substr(0, weight.size() - kWeight.size());
  const std::string a = factor_name(module, kSuffixA);
  if (factors_.find(a) == nullptr) return std::nullopt;
  const double scale = AdapterRanks(config_).scale(module);
  return TakenPart{read_whole(factors_, a), read_whole(factors_, factor_name(module, kSuffixB)) * scale};
}

std::string initial_adapter_hash(const fs::path& run_folder) {
  std::string hashes;
  for (const fs::path& file : files_of_run(run_folder)) hashes += file_hash(file);
  return content_hash(hashes);
}

std::optional<InitialAdapter> initial_adapter_of(const fs::path& run_folder, const AdapterConfig& config,
                                                 const ModelSpec& model, const std::string& hash) {
  if (!config.takes_parts()) return std::nullopt;
  if (!hash.empty() && initial_adapter_hash(run_folder) != hash) {
    throw UsageError(format(
        "{} has other values than when the checkpoint was saved, or is that of another run: put back the "
        "folder that was beside it",
        (run_folder / kInitialAdapterFolder).string()));
  }
  TensorFolder factors(files_of_run(run_folder));
  constexpr std::array<DType, 1> kType = {DType::f32};
  TensorComparison comparison(factors);
  for (const NamedTensor& tensor : named_tensors(model))
    if (is_adapter_factor(tensor.name)) comparison.expect(tensor.name, tensor.shape, kType);
  comparison.finish(format("the first values of adapters in {} do not fit the model",
                           (run_folder / kInitialAdapterFolder).string()),
                    [](std::string_view) { return false; });
  return InitialAdapter(config, std::move(factors));
}

Factors principal_factors(const at::Tensor& weight, int64_t rank, double scale, int64_t iterations) {
  const int64_t width = std::min({rank + kFurtherDirections, weight.size(0), weight.size(1)});
  const at::Tensor q = iterations > 0 ? largest_directions(weight, width, iterations) : at::Tensor();
  const auto [inner, s, v] = at::linalg_svd(q.defined() ? at::mm(q.t(), weight) : weight,
                                            /*full_matrices=*/false);
  const at::Tensor u = q.defined() ? at::mm(q, inner) : inner;
  const at::Tensor roots = (s.narrow(0, 0, rank) / scale).sqrt();
  return {(roots.unsqueeze(1) * v.narrow(0, 0, rank)).contiguous(),
          (u.narrow(1, 0, rank) * roots.unsqueeze(0)).contiguous()};
}

void write_initial_adapter(const fs::path& run_folder, const AdapterConfig& adapter, const ModelSpec& model,
                           const std::function<TensorFolder()>& open, const CheckpointRanks& ranks,
                           const std::function<bool(int64_t done, int64_t all)>& stop) {
  const std::vector<AdaptedMatrix> matrices = adapted_matrices(model, adapter);
  require_matrices(open(), matrices);
  const fs::path folder = run_folder / kInitialAdapterFolder;
  const auto rank = static_cast<size_t>(ranks.rank());
  const auto size = static_cast<size_t>(ranks.size());
  const std::vector<AdaptedMatrix> share = share_of(matrices, rank, size);
  const int64_t iterations = adapter.svd_iterations;
  // Shared with actions that are late.
  const auto staged = std::make_shared<std::optional<StagedFolder>>();
  const auto file = std::make_shared<std::optional<FactorFile>>();
  const std::string name = ranks.run([=] {
    if (rank == 0) staged->emplace(folder);
    return rank == 0 ? (*staged)->staging().filename().string() : std::string();
  })[0];
  // One matrix at a time, so that the time limit of an action is that of one.
  for (size_t i = 0; i < matrices.size(); i += size) {
    const bool stops = stop(static_cast<int64_t>(i), std::ssize(matrices));
    const std::vector<std::string> answers = ranks.run([=]() -> std::string {
      if (stops) return "stop";
      if (share.empty()) return "";
      if (!*file) {
        const std::string own = format("rank-{:05}-of-{:05}.safetensors", rank + 1, size);
        file->emplace(run_folder / name / own, share, open, iterations);
      }
      (*file)->write_next();
      return "";
    });
    if (std::ranges::count(answers, "stop") > 0)
      throw Error(
          "the run was interrupted before the first values of its adapter were complete; the next start computes "
          "them again");
  }
  ranks.run([=]() -> std::string {
    file->reset();
    if (rank == 0) publish_in_place(**staged, folder);
    return "";
  });
}

void copy_initial_adapter(const fs::path& from_run, const fs::path& run_folder,
                          const CheckpointRanks& ranks) {
  ranks.run([=, leads = ranks.rank() == 0, files = files_of_run(from_run)]() -> std::string {
    if (!leads) return "";
    StagedFolder staged(run_folder / kInitialAdapterFolder);
    for (const fs::path& file : files) fs::copy_file(file, staged.staging() / file.filename());
    publish_in_place(staged, run_folder / kInitialAdapterFolder);
    return "";
  });
}

}  // namespace stepforge
