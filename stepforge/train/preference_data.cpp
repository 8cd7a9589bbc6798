// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/preference_data.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/staged.h"
#include "stepforge/metrics/names.h"
#include "stepforge/nn/pair_terms.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

namespace {

constexpr int64_t kColumns = 4;
constexpr const char* kIdentity = "data";
constexpr const char* kModel = "model";
constexpr std::string_view kMismatched = ".mismatched";

int64_t pairs_of(const RowStream& stream, size_t source) {
  return stream.sources()[source].source->pairs();
}

/// Of each pair of a source; 0 of one that was not added.
at::Tensor tokens_of_both(const at::Tensor& source) {
  return source.narrow(1, 2, 2).sum(1);
}

/// What is not finite stays so, and is found where the loss is.
double clamped_mean(double sum, double count) {
  const double mean = count > 0.0 ? sum / count : 0.0;
  return mean < 0.0 ? 0.0 : mean;
}

/// The tables by their names in a file.
std::map<std::string, at::Tensor> named(const PreferenceData& data) {
  std::map<std::string, at::Tensor> tensors;
  const auto add = [&](std::string_view name, std::string_view kind, const PairTable& table) {
    for (size_t i = 0; i < table.tensors().size(); ++i)
      tensors.emplace(format("{}{}.{}", name, kind, i), table.tensors()[i]);
  };
  add("training", "", data.training);
  add("validation", "", data.validation);
  add("training", kMismatched, data.mismatched_training);
  add("validation", kMismatched, data.mismatched_validation);
  return tensors;
}

void require_identity_of_reference(const SafetensorsFile& file, const ReferenceIdentity& identity) {
  const SafetensorsMetadata metadata = file.metadata();
  const auto stored = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? "" : found->second;
  };
  const std::string name = file.path().string();
  const bool of_start = identity.model && identity.model->empty();
  if (stored(kIdentity) != identity.data)
    throw UsageError(format(
        "{} has the log-probabilities of other data; continue the run with the data that it began with{}",
        name, of_start ? "" : ", or remove the file to compute it again"));
  if (identity.model && stored(kModel) != *identity.model)
    throw UsageError(format(
        "{} has the log-probabilities of another reference than {}; continue the run with the preference.reference "
        "that it began with (of a run, name the checkpoint that it then had), or start a new run{}",
        name, of_start ? "the model at the start of the run" : "preference.reference as it is now",
        of_start ? "" : "; before the first checkpoint you may remove the file to compute it again"));
}

}  // namespace

PairTable::PairTable(const RowStream& stream) {
  for (size_t i = 0; i < stream.sources().size(); ++i)
    sources_.push_back(at::zeros({pairs_of(stream, i), kColumns}, at::device(at::kCPU).dtype(at::kDouble)));
}

void PairTable::add(const PairLoss& loss, const Batch& batch, const at::Tensor& token_loss) {
  if (batch.pairs.empty()) return;
  const at::Tensor log_probs = answer_log_probs(loss, batch, token_loss).cpu();
  const auto* found = log_probs.const_data_ptr<double>();
  for (const AnswerPair& pair : batch.pairs) {
    auto* const row =
        sources_.at(static_cast<size_t>(pair.source)).mutable_data_ptr<double>() + pair.number * kColumns;
    for (size_t k = 0; k < 2; ++k) {
      row[k] += *found++;
      row[2 + k] += batch.part.index == 0 ? pair.answers[k].labels : 0;
    }
  }
}

void PairTable::sum(const ModelStore& store) {
  const GroupCommunicators& groups = store.groups();
  Communicator* const ranks = groups.at(groups.layout().world_group, Lane::compute);
  if (ranks == nullptr) return;
  for (const at::Tensor& source : sources_) ranks->all_reduce(bytes_of(source), DType::f64);
}

at::Tensor PairTable::of(const Batch& batch) const {
  if (empty()) return {};
  const at::Tensor found = at::empty({std::ssize(batch.pairs), 2}, at::device(at::kCPU).dtype(at::kDouble));
  auto* to = found.mutable_data_ptr<double>();
  for (const AnswerPair& pair : batch.pairs) {
    const auto* const row =
        sources_.at(static_cast<size_t>(pair.source)).const_data_ptr<double>() + pair.number * kColumns;
    if (row[2] != pair.answers[0].labels || row[3] != pair.answers[1].labels)
      throw Error(format("pair {} of source {} has answers of {} and {} tokens, and its reference {} and {}",
                         pair.number, pair.source, pair.answers[0].labels, pair.answers[1].labels, row[2],
                         row[3]));
    *to++ = row[0];
    *to++ = row[1];
  }
  return found;
}

PairScores PairTable::scores(const PairTable& other) const {
  const at::Tensor all = at::cat(sources_);
  const at::Tensor added = tokens_of_both(all).gt(0).nonzero().view({-1});
  const auto of = [&](const at::Tensor& table) { return table.index_select(0, added); };
  const at::Tensor own = of(all);
  PairScores found{.log_probs = own.narrow(1, 0, 2), .lengths = own.narrow(1, 2, 2), .references = {}};
  if (!other.empty()) found.references = of(at::cat(other.sources_)).narrow(1, 0, 2);
  return found;
}

int64_t PairTable::pairs() const {
  int64_t count = 0;
  for (const at::Tensor& source : sources_) count += tokens_of_both(source).gt(0).sum().item<int64_t>();
  return count;
}

PairResult pair_result(const PairLoss& loss, const PairScores& scores) {
  const PairTerms terms = pair_terms(loss, scores);
  const auto sum = [](const at::Tensor& values) { return values.sum().item<double>(); };
  PairResult result;
  const at::Tensor figures = pair_figures(terms);
  std::copy_n(figures.const_data_ptr<double>(), kPairFigures, result.figures.begin());
  result.loss = sum(terms.losses) / static_cast<double>(scores.log_probs.size(0));
  if (loss.sft_weight > 0.0 && result.figures[0] > 0.0)
    result.loss -= loss.sft_weight * sum(scores.log_probs.select(1, 0)) / sum(scores.lengths.select(1, 0));
  return result;
}

double baseline_of(const PairScores& mismatched) {
  const double answers = mismatched.lengths.gt(0).sum().item<double>();
  return clamped_mean((mismatched.log_probs - mismatched.references).sum().item<double>(), answers);
}

double step_baseline(const PreferenceData& data, Executor& evaluator,
                     const std::vector<Batch>& micro_batches) {
  // Sums of multiples of it are exact, so that they do not depend on the order. It is less than the rounding of a loss in fp32.
  constexpr double kUnit = 0x1p-24;
  const GroupCommunicators& groups = evaluator.store().groups();
  const RankLayout& layout = groups.layout();
  const bool adds = layout.index_in(layout.tensor_group) == 0;
  const at::Tensor sums = at::zeros({2}, at::device(at::kCPU).dtype(at::kDouble));
  auto* const sum = sums.mutable_data_ptr<double>();
  for (const Batch& micro_batch : micro_batches) {
    if (micro_batch.mismatched.empty())
      throw Error(
          "the rows of a step have no mismatched answers, which preference.loss = \"kto\" needs: a loader of a "
          "plug-in has to set Batch::mismatched");
    const Batch& batch = micro_batch.mismatched.front();
    const at::Tensor token_loss = evaluate_batch(evaluator, batch, /*with_logits=*/false).token_loss;
    if (!adds || !token_loss.defined() || batch.pairs.empty()) continue;
    at::Tensor values = answer_log_probs(data.loss, batch, token_loss).cpu();
    if (batch.part.index == 0) {
      values = values - data.mismatched_training.of(batch);
      for (const AnswerPair& pair : batch.pairs)
        sum[1] += pair.answers[0].labels > 0 || pair.answers[1].labels > 0 ? 1 : 0;
    }
    sum[0] += (values / kUnit).round().sum().item<double>() * kUnit;
  }
  if (Communicator* const ranks = groups.at(layout.world_group, Lane::compute); ranks != nullptr)
    ranks->all_reduce(bytes_of(sums), DType::f64);
  return clamped_mean(sum[0], sum[1]);
}

TokenLosses adding_to(PairTable& table, const PairLoss& loss, const ModelStore& store) {
  const RankLayout& layout = store.groups().layout();
  if (layout.index_in(layout.tensor_group) != 0) return {};
  return [&table, &loss](const Batch& batch, const at::Tensor& token_loss) {
    table.add(loss, batch, token_loss);
  };
}

PairTable score_pairs(const PairLoss& loss, Executor& executor, const RowStream& stream, int64_t rows,
                      const ContextPart& part, const std::function<bool()>& stop, AnswerChoice answers) {
  PairTable table(stream);
  if (evaluate(executor, stream, rows, -1, stop, part, adding_to(table, loss, executor.store()), answers)
          .stopped)
    throw Error(
        "the run was interrupted before the log-probabilities of its reference were complete; the next start "
        "computes them again");
  table.sum(executor.store());
  return table;
}

void add_pair_metrics(const PairLoss& loss, std::span<const double> figures, std::string_view prefix,
                      MetricsRecord& record) {
  const double better = figures[0];
  const double others = figures[6];
  const auto add = [&](std::string_view name, double sum, double count) {
    if (count > 0.0) record.add(format("{}{}", prefix, name), sum / count);
  };
  add("rewards/chosen", figures[1], better);
  add("rewards/rejected", figures[2], others);
  if (better > 0.0 && others > 0.0)
    add(metric::reward_margins, figures[1] / better - figures[2] / others, 1.0);
  if (!loss.judged) add(metric::reward_accuracies, figures[5], better);
  if (loss.scores) return;
  add("logps/chosen", figures[3], better);
  add("logps/rejected", figures[4], others);
  if (loss.has_baseline) add("kl", figures[7], better + others);
}

void prepare_references(PreferenceData& data, const RowStream& training, const RowStream* validation) {
  const auto of_validation = [&] { return validation == nullptr ? PairTable() : PairTable(*validation); };
  data.training = PairTable(training);
  data.validation = of_validation();
  if (!data.loss.has_baseline) return;
  data.mismatched_training = PairTable(training);
  data.mismatched_validation = of_validation();
}

void save_references(const std::filesystem::path& file, const PreferenceData& data,
                     const ReferenceIdentity& identity) {
  const auto tables = named(data);
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tables) specs.push_back({name, DType::f64, tensor.sizes().vec()});
  Staging staging(file, Staging::Kind::file);
  SafetensorsWriter writer(staging.path(), specs,
                           {{kIdentity, identity.data}, {kModel, identity.model.value_or("")}});
  for (const auto& [name, tensor] : tables) writer.write(name, bytes_of(tensor));
  writer.finish();
  staging.publish();
}

void load_references(const std::filesystem::path& file, const ReferenceIdentity& identity,
                     PreferenceData& data) {
  if (!std::filesystem::exists(file))
    throw UsageError(
        format("{} is missing: it holds the log-probabilities of the run's reference; "
               "copy it from the run folder that the checkpoint comes from",
               file.string()));
  const SafetensorsFile stored(file);
  require_identity_of_reference(stored, identity);
  for (const auto& [name, tensor] : named(data)) {
    const TensorEntry* const entry = stored.find(name);
    if (entry == nullptr && name.find(kMismatched) != std::string::npos)
      throw UsageError(format(
          "{} has nothing of mismatched answers, since the run began with a preference.loss that has no baseline: "
          "continue it with that loss, or start a new run",
          file.string()));
    if (entry == nullptr || entry->dtype != DType::f64 || entry->shape != tensor.sizes().vec())
      throw UsageError(format("{}: \"{}\" is missing or has another shape", file.string(), name));
    stored.read(*entry, 0, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  }
}

}  // namespace stepforge
