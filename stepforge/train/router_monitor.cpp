// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/router_monitor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "stepforge/catalog/families.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

using Figures = std::vector<std::pair<std::string_view, double>>;

double sum_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Entropy of the shares of `values`, divided by the largest possible one.
double relative_entropy(std::span<const double> values) {
  if (values.size() < 2) return 1.0;
  const double sum = sum_of(values);
  double entropy = 0.0;
  for (const double value : values)
    if (value > 0.0) entropy -= value / sum * std::log(value / sum);
  return entropy / std::log(static_cast<double>(values.size()));
}

/// The largest load of a rank divided by the mean. Each rank has equally many consecutive experts.
double largest_rank_load(std::span<const double> tokens, int64_t ranks) {
  const size_t each = tokens.size() / static_cast<size_t>(ranks);
  double largest = 0.0;
  for (size_t first = 0; first < tokens.size(); first += each)
    largest = std::max(largest, sum_of(tokens.subspan(first, each)));
  return largest * static_cast<double>(ranks) / sum_of(tokens);
}

/// A row of RouterMonitor::take().
struct LayerSums {
  LayerSums(std::span<const double> row, size_t experts)
      : tokens(row.first(experts)),
        probabilities(row.subspan(experts, experts)),
        weight(row[2 * experts]),
        z(row[2 * experts + 1]),
        balance(row[2 * experts + 2]),
        correction_norms(row[2 * experts + 3]),
        holders(row[2 * experts + 4]) {}

  std::span<const double> tokens;
  std::span<const double> probabilities;
  double weight;
  double z;
  double balance;
  double correction_norms;
  double holders;
};

Figures figures_of(const LayerSums& layer, int64_t spread) {
  const std::span<const double> tokens = layer.tokens;
  const double mean = sum_of(tokens) / static_cast<double>(tokens.size());
  double unused = 0.0;
  double above = 0.0;
  for (const double count : tokens) {
    if (count == 0.0) unused += 1.0;
    above += std::max(0.0, count - mean);
  }
  const auto [least, most] = std::ranges::minmax(tokens);
  Figures figures = {{"max_load", most / mean},
                     {"min_load", least / mean},
                     {"unused_experts", unused / static_cast<double>(tokens.size())},
                     {"excess_load", above / sum_of(tokens)},
                     {"load_entropy", relative_entropy(tokens)},
                     {"entropy", relative_entropy(layer.probabilities)}};
  if (spread > 1) figures.emplace_back("max_rank_load", largest_rank_load(tokens, spread));
  if (layer.holders > 0.0) figures.emplace_back("correction_norm", layer.correction_norms / layer.holders);
  return figures;
}

std::vector<int64_t> layers_with_experts(const ModelConfig& model) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < model.n_layers + model.n_mtp_layers; ++layer)
    if (has_experts(model, layer)) layers.push_back(layer);
  return layers;
}

/// The mean of each figure over layers, which all have the same.
Figures means_of(const std::vector<Figures>& layers) {
  Figures means = layers.at(0);
  for (size_t i = 0; i < means.size(); ++i) {
    means[i].second = 0.0;
    for (const Figures& layer : layers) means[i].second += layer.at(i).second;
    means[i].second /= static_cast<double>(layers.size());
  }
  return means;
}

}  // namespace

RouterMonitor::RouterMonitor(const Config& config, const ParallelDims& dims, const ModelStore& store)
    : config_(config),
      store_(store),
      layers_(layers_with_experts(config.model)),
      experts_(config.model.n_experts),
      copies_(config.parallelism.enable_sequence_parallel ? 1 : dims.tp),
      spread_(dims.ep) {}

at::Tensor RouterMonitor::take(Communicator* ranks) {
  const int64_t columns = RouterTally::columns(experts_);
  at::Tensor sums = at::zeros({std::ssize(layers_), columns + 2}, at::device(at::kCPU).dtype(at::kDouble));
  for (int64_t i = 0; i < std::ssize(layers_); ++i) {
    const int64_t layer = layers_[static_cast<size_t>(i)];
    const at::Tensor row = sums.select(0, i);
    row.narrow(0, 0, columns).copy_(tally_.sums_of(layer, experts_, store_.device()));
    for (size_t u = 0; u < store_.size(); ++u) {
      const UnitStore& unit = store_.unit(u);
      if (!unit.spec().state || unit.spec().layer != layer) continue;
      row.select(0, columns).copy_(unit.master_view(0).norm());
      row.select(0, columns + 1).fill_(1.0);
    }
  }
  tally_.clear();
  if (ranks != nullptr) ranks->all_reduce(bytes_of(sums), DType::f64);
  return sums;
}

void RouterMonitor::log(Communicator* ranks, MetricsRecord& record) {
  const at::Tensor sums = take(ranks);
  const auto columns = static_cast<size_t>(sums.size(1));
  const std::span<const double> values(sums.const_data_ptr<double>(), layers_.size() * columns);
  std::vector<LayerSums> layers;
  std::vector<int64_t> numbers;  // layers of multi-token prediction have fewer tokens than others, or none
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerSums layer(values.subspan(i * columns, columns), static_cast<size_t>(experts_));
    if (sum_of(layer.tokens) == 0.0) continue;
    layers.push_back(layer);
    numbers.push_back(layers_[i]);
  }
  if (layers.empty()) return;
  if (has_router_losses(config_.model)) {
    const auto total = [&](double LayerSums::* member) {
      return std::transform_reduce(layers.begin(), layers.end(), 0.0, std::plus<>(), std::mem_fn(member));
    };
    const double weight = total(&LayerSums::weight);
    record.add(metric::router_balance, total(&LayerSums::balance) / weight);
    record.add(metric::router_z, total(&LayerSums::z) / weight);
  }
  if (config_.metrics.router == RouterMetrics::off) return;
  std::vector<Figures> figures;
  for (const LayerSums& layer : layers) figures.push_back(figures_of(layer, spread_));
  for (const auto& [name, value] : means_of(figures)) record.add(metric::router(name), value);
  for (size_t i = 0; i < layers.size(); ++i)
    for (const auto& [name, value] : figures[i]) record.add(metric::router(numbers[i], name), value);
  if (config_.metrics.router != RouterMetrics::experts) return;
  for (size_t i = 0; i < layers.size(); ++i) {
    std::vector<double> tokens(layers[i].tokens.begin(), layers[i].tokens.end());
    for (double& count : tokens) count /= static_cast<double>(copies_);
    record.lists.emplace_back(metric::router(numbers[i], "tokens"), std::move(tokens));
  }
}

std::unique_ptr<RouterMonitor> make_router_monitor(const Config& config, const ParallelDims& dims,
                                                   const ModelStore& store) {
  const bool wanted = config.metrics.router != RouterMetrics::off || has_router_losses(config.model);
  if (!wanted || layers_with_experts(config.model).empty()) return nullptr;
  return std::make_unique<RouterMonitor>(config, dims, store);
}

}  // namespace stepforge
