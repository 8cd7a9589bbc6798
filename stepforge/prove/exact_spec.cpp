// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_spec.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/catalog/biased_experts.h"
#include "stepforge/catalog/mtp_layers.h"
#include "stepforge/catalog/tensor_costs.h"
#include "stepforge/modelspec/expert_values.h"

namespace stepforge {

namespace {

constexpr int64_t kWidth = 37;
constexpr int64_t kHidden = 53;
constexpr int64_t kExperts = 6;
constexpr int64_t kChosen = 2;
constexpr int64_t kExpertHidden = 11;

ParameterSpec parameter(const std::string& name, std::vector<int64_t> shape, ParameterTag tag) {
  const Initializer spread{Initializer::Kind::normal, 0.4};
  const int64_t rows = shape[0];
  return {name, std::move(shape), {{"weight", name, rows, spread}}, tag};
}

ParameterSpec matrix(const std::string& name, int64_t rows, int64_t columns) {
  return parameter(name, {rows, columns}, ParameterTag::matrix);
}

/// The part of a parameter that this rank holds, along a dimension.
ParameterSpec divided(ParameterSpec whole, size_t dimension, const TensorParallel& tensor) {
  if (tensor.degree == 1 || !tensor.divided) return whole;
  const ShardRange part = tensor.part_of(whole.shape.at(dimension));
  SubTensor& held = whole.sub_tensors.at(0);
  held.tensor_shape = whole.shape;
  held.offsets.assign(whole.shape.size(), 0);
  held.offsets.at(dimension) = part.begin;
  whole.shape.at(dimension) = part.size();
  held.rows = whole.shape.at(0);
  return whole;
}

/// The matrices [rows, columns] of all experts, of which this rank holds a part of its own ones.
ParameterSpec expert_matrices(const std::string& name, int64_t rows, int64_t columns,
                              const ShardRange& part_rows, const ShardRange& part_columns,
                              const ExpertParallel& experts) {
  const ShardRange own = experts.part_of(kExperts);
  ParameterSpec made = matrix(name, own.size() * part_rows.size(), part_columns.size());
  made.sub_tensors.clear();
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    SubTensor one = matrix(format("{}.{}", name, expert), rows, columns).sub_tensors.at(0);
    one.name = format("{}", expert);
    const bool held = expert >= own.begin && expert < own.end;
    if (!held || part_rows.size() < rows || part_columns.size() < columns) {
      one.tensor_shape = {rows, columns};
      one.offsets = {part_rows.begin, part_columns.begin};
      one.rows = held ? part_rows.size() : 0;
    }
    made.sub_tensors.push_back(std::move(one));
  }
  return made;
}

// The calls of the specification. They count about as many bytes as these layers use.

CallSpec call(TypeRule rule, const std::string& weight, int64_t output, int64_t saves = 0) {
  CallSpec made{.name = weight.substr(weight.rfind('.') + 1), .rule = rule, .weights = {weight}};
  made.output.compute = output;
  made.saves.compute = saves;
  made.gradient.compute = output;
  return made;
}

/// Sums of the tokens that each token sees, times a weight that every rank has.
RegionSpec mixing_region(const std::string& mix, const TensorParallel& tensor,
                         const ContextParallel& context) {
  RegionSpec region{.name = "attention", .residual = true};
  std::vector<CallSpec>& calls = region.calls;
  const bool slices = tensor.degree > 1 && tensor.sequence;
  if (slices) add_enter(calls, kWidth, tensor);
  const Exchange by_heads{BlockAxis::heads, ExchangeKind::all_to_all, {kWidth}};
  const CallSpec exchange_heads{.name = "heads",
                                .rule = TypeRule::exchange,
                                .forward_exchanges = {by_heads},
                                .backward_exchanges = {by_heads}};
  if (context.heads() > 1) calls.push_back(exchange_heads);
  CallSpec sums{.name = "sums", .rule = TypeRule::attention};
  sums.output.compute = kWidth;
  sums.gradient.compute = kWidth;
  if (context.across() > 1) {
    const Elements all{context.across() * kWidth};
    const bool ring = context.has_ring();
    sums.forward_exchanges = {{BlockAxis::context, ring ? ExchangeKind::shift : ExchangeKind::gather, all}};
    sums.backward_exchanges = {
        {BlockAxis::context, ring ? ExchangeKind::shift : ExchangeKind::sum_slice, all}};
  }
  calls.push_back(std::move(sums));
  if (context.heads() > 1) calls.push_back(exchange_heads);
  if (slices)
    calls.push_back({.name = "slice",
                     .rule = TypeRule::exchange,
                     .forward_exchanges = {over_tensor(ExchangeKind::slice, {})}});
  calls.push_back(call(TypeRule::linear, mix, kWidth, 2 * kWidth));
  if (slices)
    calls.back().backward_exchanges = {
        {BlockAxis::tensor, ExchangeKind::sum, {}, kWidth * kWidth * static_cast<int64_t>(sizeof(float))}};
  return region;
}

RegionSpec hidden_region(const std::string& layer, const TensorParallel& tensor) {
  RegionSpec region{.name = "mlp", .residual = true};
  add_enter_linear(region.calls, "up", layer + ".up", kWidth, kHidden, tensor);
  region.calls.push_back({.name = "bias", .weights = {layer + ".bias"}});
  region.calls.back().output.compute = 2 * kHidden;  // and rounded
  region.calls.back().gradient.compute = kHidden;
  add_leave_linear(region.calls, "down", layer + ".down", kHidden, kWidth, /*keeps_input=*/true, tensor);
  return region;
}

/// The calls of a layer with experts: of the router, of the experts, and what takes rows to them and back.
struct ExpertCalls {
  CallSpec route;
  std::vector<CallSpec> experts;

  ExpertCalls(const std::string& layer, bool biased) {
    route = {.name = "route", .weights = {layer + ".router"}, .output = {0, 2 * kChosen}};
    route.saves = {kWidth, 2 * kExperts};
    route.gradient.compute = kWidth;
    experts = {
        call(TypeRule::linear, layer + ".expert_gate_up", 2 * kChosen * kExpertHidden, kChosen * kWidth),
        call(TypeRule::linear, layer + ".expert_down", 2 * kChosen * kWidth, kChosen * kExpertHidden)};
    if (!biased) return;
    for (CallSpec& product : experts) product.output.compute *= 2;  // and sums with biases
    experts.push_back({.name = "biases",
                       .rule = TypeRule::memory,
                       .weights = {layer + ".expert_gate_up_bias", layer + ".expert_down_bias"}});
  }
};

RegionSpec experts_region(const std::string& layer, bool biased) {
  ExpertCalls made(layer, biased);
  const Elements rows{kChosen * kWidth, 2 * kChosen};
  RegionSpec region{.name = "mlp", .calls = {std::move(made.route)}, .residual = true};
  region.calls.push_back({.name = "rows", .output = rows, .gradient = rows});
  std::ranges::move(made.experts, std::back_inserter(region.calls));
  region.calls.push_back({.name = "sums", .output = {kWidth}, .gradient = rows});
  return region;
}

/// Of each token `rows` rows: its own, and those of tokens further ahead.
RegionSpec embedding_region(const TensorParallel& tensor, int64_t rows) {
  const int64_t width = rows * kWidth;
  RegionSpec region{.name = "embedding", .calls = {call(TypeRule::lookup, "embedding.weight", width)}};
  add_leave(region.calls, width, tensor);
  return region;
}

/// The sum of two values.
RegionSpec join_region() {
  CallSpec sum{.name = "sum", .rule = TypeRule::elementwise};
  sum.output.compute = sum.gradient.compute = kWidth;
  return {.name = "join", .calls = {sum}};
}

/// Of the hidden state and a later embedding, with all tokens or a slice of them, by a weight that every rank has.
RegionSpec later_region(const std::string& weight, const TensorParallel& tensor) {
  RegionSpec region{.name = "mtp"};
  CallSpec join{.name = "join"};
  join.output.compute = join.gradient.compute = 2 * kWidth;
  region.calls = {join, call(TypeRule::linear, weight, kWidth, 2 * kWidth)};
  compute_on_slices(region, tensor);
  return region;
}

RegionSpec head_region(const std::string& weight, const TensorParallel& tensor) {
  RegionSpec region{.name = "head"};
  add_enter(region.calls, kWidth, tensor);
  region.calls.push_back(call(TypeRule::loss, weight, kExactVocabulary));
  if (tensor.degree > 1 && tensor.divided)
    region.calls.back().forward_exchanges = {over_tensor(ExchangeKind::sum, {2})};
  return region;
}

/// Adds the blocks of a layer whose experts are spread over ranks. The tokens that go to them are the hidden state.
void add_spread_layer(ModelSpec& spec, int layer, const BundleEntry& stream, RegionSpec mixing, bool biased,
                      const TensorParallel& tensor, const ExpertParallel& experts) {
  const std::string name = format("layers.{}", layer);
  const int64_t rows = experts.rows_per_token(kExperts, kChosen);
  // Of the layer, with slices of the tokens of its router, and last of the experts.
  const auto unit = static_cast<int>(spec.units.size());
  std::vector<int> units = {unit};
  if (stream.slice) units.push_back(unit + 1);
  const int of_experts = units.back() + 1;
  ExpertValues values(stream, kChosen);
  values.tokens = stream;
  ExpertCalls calls(name, biased);
  const auto add = [&](LayerPart part, std::vector<int> units, std::vector<BundleEntry> inputs,
                       std::vector<BundleEntry> outputs, RegionSpec last) -> BlockSpec& {
    compute_on_slices(last, tensor);
    return spec.blocks.emplace_back(
        layer_part(layer, part, std::move(units), std::move(inputs), std::move(outputs), {std::move(last)}));
  };
  BlockSpec& router =
      add(LayerPart::router, std::move(units), {stream}, {stream, values.weights, values.experts},
          {.name = "router", .calls = {std::move(calls.route)}});
  router.kept = {stream.name};
  router.regions.insert(router.regions.begin(), std::move(mixing));
  add(LayerPart::experts, {of_experts}, values.inputs(rows), {values.results(rows)},
      {.name = "mlp", .calls = std::move(calls.experts)})
      .dispatch = values.dispatch(kExperts, experts);
  add(LayerPart::join, {}, {stream, values.combined()}, {stream}, join_region());
}

/// Each expert has matrices of its own.
std::vector<ParameterSpec> tensors_of_each(const std::string& name, const ExpertParallel& experts) {
  const ShardRange hidden = experts.units_of(kExpertHidden);
  const ShardRange width{0, kWidth};
  return {expert_matrices(name + ".expert_gate_up", kExpertHidden, kWidth, hidden, width, experts),
          expert_matrices(name + ".expert_down", kWidth, kExpertHidden, width, hidden, experts)};
}

/// Those of all experts are one tensor, and they have biases.
std::vector<ParameterSpec> one_tensor_each(const std::string& name, const ExpertParallel& experts) {
  const ExpertDims dims{
      .width = kWidth, .hidden = kExpertHidden, .experts = kExperts, .chosen = kChosen, .biased = true};
  std::vector<ParameterSpec> made =
      stacked_parameters(name, name + ".experts.", dims, gpt_oss_expert_names(), 1, experts);
  for (ParameterSpec& one : made) one.sub_tensors.at(0).init = {Initializer::Kind::normal, 0.4};
  return made;
}

/// The region of experts that are all on this rank.
RegionSpec whole_experts_region(const std::string& layer, bool biased, const TensorParallel& tensor) {
  RegionSpec region = experts_region(layer, biased);
  compute_on_slices(region, tensor);
  return region;
}

/// The units of the router and the experts of a layer, whose other parameters are those of `trained`.
std::vector<UnitSpec> units_of_experts(UnitSpec trained, bool biased, const TensorParallel& tensor,
                                       const ExpertParallel& experts) {
  const std::string name = trained.name;
  ParameterSpec router = matrix(name + ".router", kExperts, kWidth);
  const UnitMesh mesh = tensor.sequence ? UnitMesh::slices : UnitMesh::rows;
  std::vector<UnitSpec> units = {std::move(trained)};
  if (tensor.sequence)
    units.push_back({.name = name + ".mlp", .parameters = {std::move(router)}, .mesh = mesh});
  else
    units.front().parameters.push_back(std::move(router));
  units.push_back({.name = name + ".experts",
                   .parameters = biased ? one_tensor_each(name, experts) : tensors_of_each(name, experts),
                   .mesh = experts.degree > 1 ? UnitMesh::experts : mesh});
  return units;
}

}  // namespace

ModelSpec exact_spec(ExactModel model, int64_t layers, const TensorParallel& tensor,
                     const ContextParallel& context, const TensorPlan& plan, const ExpertParallel& experts) {
  const bool shared = model == ExactModel::shared;
  ModelSpec spec;
  spec.family = "exact";
  spec.vocab_size = kExactVocabulary;
  spec.width = kWidth;
  spec.layers = layers;
  spec.max_position = 4096;
  spec.degrees = {tensor.degree, context.across(), context.heads(), experts.degree};
  const TensorParallel embedding = plan.of_layer(tensor, {"embedding.weight"});
  const TensorParallel head_part = plan.of_layer(tensor, {shared ? "embedding.weight" : "head.weight"});
  const BundleEntry stream{"hidden", kWidth, tensor.sequence};
  const BundleEntry source{"source", kWidth, tensor.sequence};
  spec.units.push_back(
      {"embedding", {divided(matrix("embedding.weight", kExactVocabulary, kWidth), 0, embedding)}});
  spec.blocks.push_back({"embedding",
                         BlockKind::embedding,
                         -1,
                         {0},
                         {},
                         {stream},
                         {embedding_region(embedding, has_mtp(model) ? 2 : 1)}});
  if (model == ExactModel::graph) spec.blocks.back().outputs.push_back(source);
  const auto add_layer = [&](int layer) {
    const std::string name = format("layers.{}", layer);
    const TensorParallel mlp = plan.of_layer(tensor, {name + ".mlp.gate_up", name + ".mlp.down"});
    BlockSpec block{name, BlockKind::layer, layer, {}, {stream}, {stream}, {}};
    const bool biased = model == ExactModel::biased;
    block.regions = {
        mixing_region(name + ".mix", tensor, context),
        has_experts(model) ? whole_experts_region(name, biased, tensor) : hidden_region(name, mlp)};
    if (model == ExactModel::graph && layer % 2 == 1) {
      block.inputs.push_back(source);
      block.regions.insert(block.regions.begin(), join_region());
    }
    const bool is_cut = has_experts(model) && experts.degree > 1;
    if (is_cut)
      add_spread_layer(spec, layer, stream, std::move(block.regions.front()), biased, tensor, experts);
    const auto add_unit = [&](UnitSpec unit) {
      block.units.push_back(static_cast<int>(spec.units.size()));
      spec.units.push_back(std::move(unit));
    };
    UnitSpec trained{name, {}};
    if (!has_experts(model)) {
      trained.parameters = {divided(matrix(name + ".up", kHidden, kWidth), 0, mlp),
                            divided(parameter(name + ".bias", {kHidden}, ParameterTag::bias), 0, mlp),
                            divided(matrix(name + ".down", kWidth, kHidden), 1, mlp)};
    }
    ParameterSpec mix = matrix(name + ".mix", kWidth, kWidth);
    if (shared) {
      trained.parameters.push_back(matrix(name + ".unused", 5, 3));
      block.regions.back().calls.push_back(
          {.name = "unused", .rule = TypeRule::memory, .weights = {name + ".unused"}});
      add_unit({name + ".frozen", {std::move(mix)}, /*trainable=*/false});
    } else {
      trained.parameters.push_back(std::move(mix));
    }
    if (has_experts(model))
      for (UnitSpec& unit : units_of_experts(std::move(trained), biased, tensor, experts))
        add_unit(std::move(unit));
    else
      add_unit(std::move(trained));
    if (!is_cut) spec.blocks.push_back(std::move(block));
  };
  for (int layer = 0; layer < static_cast<int>(layers); ++layer) add_layer(layer);
  const std::string output = shared ? "embedding.weight" : "head.weight";
  BlockSpec head{"head", BlockKind::head, -1, {0}, {stream}, {}, {head_region(output, head_part)}};
  if (shared) {
    spec.ties.push_back({"embedding.weight", "head", "head.weight"});
  } else {
    head.units = {static_cast<int>(spec.units.size())};
    spec.units.push_back({"head", {divided(matrix("head.weight", kExactVocabulary, kWidth), 0, head_part)}});
  }
  spec.blocks.push_back(std::move(head));
  if (model == ExactModel::graph) {
    const TensorParallel part = plan.of_layer(tensor, {"extra.weight"});
    spec.blocks.push_back({"extra",
                           BlockKind::head,
                           -1,
                           {static_cast<int>(spec.units.size())},
                           {source},
                           {},
                           {head_region("extra.weight", part)}});
    spec.blocks.back().loss_weight = 2;
    spec.units.push_back({"extra", {divided(matrix("extra.weight", kExactVocabulary, kWidth), 0, part)}});
  }
  if (has_mtp(model)) {
    const BundleEntry embedded = mtp_embedded(stream, 1);
    spec.blocks.front().outputs.push_back(embedded);
    const int head_unit = spec.blocks.back().units.front();
    const std::string name = format("layers.{}.mtp", layers);
    const size_t first = spec.blocks.size();
    spec.blocks.push_back({name,
                           BlockKind::mtp,
                           static_cast<int>(layers),
                           {static_cast<int>(spec.units.size())},
                           {stream, embedded},
                           {stream},
                           {later_region(name + ".weight", tensor)}});
    spec.units.push_back({.name = name,
                          .parameters = {matrix(name + ".weight", kWidth, 2 * kWidth)},
                          .mesh = tensor.sequence ? UnitMesh::slices : UnitMesh::rows});
    add_layer(static_cast<int>(layers));
    spec.blocks.push_back({format("layers.{}.head", layers),
                           BlockKind::head,
                           -1,
                           {head_unit},
                           {stream},
                           {},
                           {head_region(output, head_part)}});
    spec.blocks.back().loss_weight = 0.5;
    spec.ahead = 1;
    for (size_t b = first; b < spec.blocks.size(); ++b) spec.blocks[b].ahead = 1;
  }
  return spec;
}

}  // namespace stepforge
