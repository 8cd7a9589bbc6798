// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/layout_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/catalog/parallel_plans.h"
#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/modelspec/value_types.h"

namespace stepforge {

namespace {

/// "layers.*.mlp.norm" for "layers.3.mlp.norm".
std::string without_layer(const std::string& name) {
  std::string text;
  for (const char letter : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(letter)) != 0;
    if (digit && text.ends_with(".*")) continue;
    text += digit && text.ends_with('.') ? '*' : letter;
  }
  return text;
}

/// Lines of equal cells whose names differ in the layer only are one, with their number.
class Table {
 public:
  explicit Table(std::vector<std::string> headings) { add(std::move(headings)); }

  /// The first cell is the name.
  void add(std::vector<std::string> cells) {
    cells[0] = without_layer(cells[0]);
    for (auto& [line, count] : lines_) {
      if (line != cells) continue;
      ++count;
      return;
    }
    lines_.emplace_back(std::move(cells), 1);
  }

  std::string text() const {
    std::vector<std::size_t> widths(lines_.front().first.size());
    std::vector<std::vector<std::string>> rows;
    for (const auto& [line, count] : lines_) {
      rows.push_back(line);
      if (count > 1) rows.back()[0] += format(" (each of {})", count);
      for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], rows.back()[i].size());
    }
    std::string text;
    for (const std::vector<std::string>& row : rows) {
      std::string line = " ";
      for (std::size_t i = 0; i < row.size(); ++i) line += format(" {:<{}} ", row[i], widths[i]);
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return text;
  }

 private:
  std::vector<std::pair<std::vector<std::string>, int>> lines_;
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

/// "rows 64 to 127", "columns 0 to 2047", "matrices 4 to 7" of a tensor of several, "all", "nothing"
std::string slice_text(const TensorSlice& slice, const std::vector<int64_t>& shape) {
  if (slice.elements() == 0) return "nothing";
  constexpr std::array<const char*, 3> kNames = {"matrices", "rows", "columns"};
  const std::size_t first = shape.size() == 3 ? 0 : 1;
  std::vector<std::string> parts;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (slice.sizes[d] == shape[d]) continue;
    parts.push_back(
        format("{} {} to {}", kNames.at(first + d), slice.offsets[d], slice.offsets[d] + slice.sizes[d] - 1));
  }
  return parts.empty() ? "all" : join(parts, ", ");
}

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min(kShown, ranks.size()); ++i) shown.push_back(std::to_string(ranks[i]));
  return join(shown, " ") + (ranks.size() > kShown ? format(" ... {}", ranks.back()) : "");
}

std::string group_table(const RankLayout& layout) {
  Table table({"group", "ranks", "", "this one is"});
  for (const RankGroup& group : layout.groups) {
    const auto place = std::ranges::find(group.ranks, layout.id.rank) - group.ranks.begin();
    table.add({group.name, std::to_string(group.ranks.size()), ranks_text(group.ranks),
               format("number {}", place)});
  }
  return table.text();
}

std::string reductions_text(const UnitLayout& unit, const RankLayout& layout) {
  std::vector<std::string> steps;
  for (const ReductionStep& step : unit.reductions)
    steps.push_back(
        format("{} {}", step.collective == CollectiveKind::reduce_scatter ? "reduce-scatter" : "all-reduce",
               layout.groups.at(static_cast<std::size_t>(step.group)).name));
  return steps.empty() ? "-" : join(steps, ", ");
}

std::string unit_table(const ModelSpec& part, const RankLayout& layout) {
  Table table({"unit", "parameters", "a shard has", "over", "partition", "gathered in", "gradient", "state"});
  for (std::size_t u = 0; u < part.units.size(); ++u) {
    const UnitSpec& spec = part.units[u];
    const UnitLayout& unit = layout.units[u];
    const int shards = layout.size_of(unit.shard_group);
    const int64_t held = ShardLayout(spec, unit.partition, shards).shard_size();
    table.add({spec.name, human_count(spec.elements()), human_count(held),
               unit.shard_group < 0 ? "-" : layout.groups.at(static_cast<std::size_t>(unit.shard_group)).name,
               partition_text(unit.partition), std::string(dtype_name(unit.gather)),
               spec.trainable ? reductions_text(unit, layout) : "frozen",
               unit.offloaded ? "host" : "device"});
  }
  return table.text();
}

/// The style of a parameter, "-" if tensor parallelism does not decide how it is divided.
std::string style_text(const RankLayout& layout, const UnitSpec& unit, const std::string& parameter,
                       const TensorPlan& plan) {
  const bool decides = layout.dims.tp > 1 && unit.mesh != UnitMesh::experts;
  return decides ? std::string(style_name(plan.style_of(parameter))) : "-";
}

/// Which rank counts a parameter in norms and saves it.
std::string counted_text(const RankLayout& layout, const UnitLayout& unit, std::size_t parameter) {
  if (unit.counts(parameter)) return "yes";
  return layout.index_in(unit.tie_group) > 0 ? "first stage" : "first rank of tp";
}

std::string tensor_table(const ModelSpec& part, const RankLayout& layout, const TensorPlan& plan) {
  Table table({"tensor", "shape", "style", "this rank has", "norm and checkpoint"});
  for (std::size_t u = 0; u < part.units.size(); ++u) {
    for (std::size_t p = 0; p < part.units[u].parameters.size(); ++p) {
      const ParameterSpec& parameter = part.units[u].parameters[p];
      for (std::size_t s = 0; s < parameter.sub_tensors.size(); ++s) {
        const std::vector<int64_t> shape = parameter.tensor_shape(s);
        const TensorSlice held = parameter.slice_of(s);
        table.add(
            {parameter.name + (parameter.sub_tensors.size() > 1 ? " " + parameter.sub_tensors[s].name : ""),
             shape_text(shape), style_text(layout, part.units[u], parameter.name, plan),
             slice_text(held, shape), held.elements() == 0 ? "-" : counted_text(layout, layout.units[u], p)});
      }
    }
  }
  return table.text();
}

/// "gather over tensor, sum over tensor (weights)"
std::string exchanges_text(const std::vector<Exchange>& exchanges) {
  std::vector<std::string> texts;
  for (const Exchange& exchange : exchanges)
    texts.push_back(format("{} over {}{}{}", exchange_name(exchange.kind), axis_name(exchange.axis),
                           exchange.weight_bytes > 0 ? " (weights)" : "",
                           exchange.beside ? " (beside)" : ""));
  return texts.empty() ? "-" : join(texts, ", ");
}

ExchangeKind exchange_of(DispatchMethod method, bool to_experts) {
  switch (method) {
    case DispatchMethod::all_to_all:
      return ExchangeKind::all_to_all;
    case DispatchMethod::all_gather:
      return to_experts ? ExchangeKind::gather : ExchangeKind::sum_slice;
  }
  return {};
}

/// The cells of the exchange to a block's experts, or back, whose result has type `made` over experts. In the backward pass
/// it is reversed.
std::vector<std::string> dispatch_cells(const BlockSpec& block, bool back, const std::vector<TypeAxis>& axes,
                                        ValueType made) {
  std::vector<std::string> cells = {format("{}.{}", block.name, back ? "combine" : "dispatch")};
  for (const TypeAxis& axis : axes) {
    const bool slices = axis.axis == BlockAxis::tensor && block.dispatch->sent.front().slice;
    const ValueType type = axis.axis == BlockAxis::experts ? made : slices ? ValueType::tokens : axis.tokens;
    cells.push_back(format("{}, {}", type_name(type), type_name(type)));
  }
  for (const bool to_experts : {!back, back}) {
    const ExchangeKind kind = exchange_of(block.dispatch->method, to_experts);
    cells.push_back(format("{} over {}", exchange_name(kind), axis_name(BlockAxis::experts)));
  }
  return cells;
}

/// The types of values and gradients on the axes over which the model is divided, and what is exchanged.
std::string type_table(const ModelSpec& part) {
  std::vector<TypeAxis> axes = type_axes(part);
  axes.erase(axes.begin());  // data: what varies there is plain
  if (axes.empty()) return "";
  std::vector<std::string> headings = {"result of"};
  for (const TypeAxis& axis : axes) headings.push_back(format("{}, gradient", axis.name));
  headings.insert(headings.end(), {"forward exchanges", "backward exchanges"});
  Table table(headings);
  for (const BlockSpec& block : part.blocks) {
    if (block.dispatch) table.add(dispatch_cells(block, /*back=*/false, axes, ValueType::channels));
    const std::vector<CallInfo> calls = call_infos(block.list);
    const std::vector<bool> again = calls_made_again(block.list);
    std::vector<std::vector<CallTypes>> types;
    for (const TypeAxis& axis : axes) types.push_back(value_types(part, block, calls, axis));
    for (std::size_t c = 0; c < types[0].size(); ++c) {
      const CallInfo& info = *types[0][c].call;
      const Call& call = *info.call;
      std::vector<std::string> cells = {
          format("{}{}.{}", block.name, call.region == block.name ? "" : "." + call.region, call.name)};
      for (const std::vector<CallTypes>& typed : types)
        cells.push_back(format("{}, {}", type_name(typed[c].value), type_name(typed[c].gradient)));
      CallExchanges exchanges = info.exchanges();
      cells.push_back(exchanges_text(exchanges.forward));
      if (again[static_cast<size_t>(&info - calls.data())])
        std::ranges::copy(exchanges.forward, std::back_inserter(exchanges.backward));
      cells.push_back(exchanges_text(exchanges.backward));
      table.add(std::move(cells));
    }
    if (block.dispatch) table.add(dispatch_cells(block, /*back=*/true, axes, ValueType::varying));
  }
  return "\n" + table.text();
}

}  // namespace

std::string layout_text(const Job& job) {
  const RankLayout& layout = job.layout;
  std::string text = format("Layout of rank {} of {}: {}; it reads rows as data rank {} of {}\n\n",
                            layout.id.rank, with_thousands(layout.id.world_size), mesh_text(layout.dims),
                            layout.data_rank, layout.data_ranks);
  if (!layout.groups.empty()) text += group_table(layout) + "\n";
  return text + unit_table(job.part, layout) + "\n" +
         tensor_table(job.part, layout, tensor_plan(job.config)) + type_table(job.part);
}

}  // namespace stepforge
