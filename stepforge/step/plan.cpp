#include "stepforge/step/plan.h"

#include <algorithm>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/step/collectives.h"
#include "stepforge/step/memory.h"

namespace stepforge {

namespace {

/// A line of a table: a name, and cells that decide whether neighbours are alike.
struct Row {
  std::string name;
  std::vector<std::string> cells;
};

void add_line(std::string& text, const std::string& name, const std::vector<std::string>& cells) {
  text += format("  {:<34}", name);
  for (const std::string& cell : cells) text += format("  {:>12}", cell);
  text += "\n";
}

/// Runs of rows with equal cells become one line: "layers.0 to layers.125, 126 times".
std::string folded(const std::vector<std::string>& headings, const std::vector<Row>& rows) {
  std::string text;
  add_line(text, "", headings);
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin + 1;
    while (end < rows.size() && rows[end].cells == rows[begin].cells) ++end;
    const std::string name =
        end - begin == 1 ? rows[begin].name
                         : format("{} to {}, each of {}", rows[begin].name, rows[end - 1].name, end - begin);
    add_line(text, name, rows[begin].cells);
    begin = end;
  }
  return text;
}

std::string unit_table(const ModelSpec& model, const StepProgram& program) {
  std::vector<Row> rows;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const bool has_gradient = unit.trainable && program.kind == ProgramKind::train;
    rows.push_back({unit.name,
                    {human_count(unit.elements()), human_bytes(flat_layout(unit).size * 4),
                     !unit.trainable ? "frozen" : (has_gradient ? "yes" : "-"),
                     program.units[u].resident ? "resident" : "gathered"}});
  }
  return folded({"parameters", "fp32 bytes", "trained", "when used"}, rows);
}

struct BlockRow {
  double forward_flops = 0;
  int64_t output = 0;
  int64_t saved = 0;
  int64_t forward_workspace = 0;
  int64_t backward_workspace = 0;
  bool recomputed = false;
};

std::vector<BlockRow> block_rows(const StepProgram& program) {
  std::vector<BlockRow> rows(program.blocks.size());
  const auto bytes = [&](const Operation& operation, BufferKind kind) {
    const int buffer = find_buffer(program, operation.allocates, kind);
    return buffer < 0 ? 0 : program.buffers[static_cast<std::size_t>(buffer)].bytes;
  };
  for (const Operation& operation : program.operations) {
    if (operation.block < 0 || operation.micro_batch != 0) continue;
    BlockRow& row = rows[static_cast<std::size_t>(operation.block)];
    row.saved += bytes(operation, BufferKind::graph);
    row.recomputed = row.recomputed || operation.kind == OpKind::recompute;
    if (operation.kind == OpKind::backward) {
      row.backward_workspace = operation.workspace;
    } else if (operation.kind != OpKind::recompute) {
      row.output = bytes(operation, BufferKind::bundle);
      row.forward_workspace = operation.workspace;
      row.forward_flops = operation.flops;
    }
  }
  return rows;
}

std::string block_table(const StepProgram& program) {
  std::vector<Row> rows;
  const std::vector<BlockRow> blocks = block_rows(program);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const BlockRow& block = blocks[b];
    std::string again = block.recomputed ? "whole" : join(program.blocks[b].recomputed_regions, "+");
    rows.push_back({program.blocks[b].name,
                    {format("{:.3g}", block.forward_flops / 1e9), human_bytes(block.output),
                     human_bytes(block.saved), human_bytes(block.forward_workspace),
                     human_bytes(block.backward_workspace), again.empty() ? "-" : std::move(again)}});
  }
  return folded({"fwd GFLOP", "result", "saved", "fwd work", "bwd work", "recomputed"}, rows);
}

std::string memory_table(const StepProgram& program) {
  const MemoryAccount memory = account(program);
  std::string text;
  const auto line = [&](const std::string& name, int64_t bytes) {
    add_line(text, name, {human_bytes(bytes), with_thousands(bytes)});
  };
  int64_t activations = 0;
  for (const auto& [kind, bytes] : memory.at_peak) {
    const bool is_activation = kind == BufferKind::batch || kind == BufferKind::bundle ||
                               kind == BufferKind::graph || kind == BufferKind::bundle_gradient;
    if (is_activation)
      activations += bytes;
    else
      line(std::string(buffer_kind_name(kind)), bytes);
  }
  line("activations", activations);
  line("workspace", memory.workspace_at_peak);
  line("predicted peak", memory.peak_bytes);
  if (memory.host_bytes > 0) line("on the host", memory.host_bytes);
  if (memory.peak_operation < program.operations.size()) {
    text += format("  reached at operation {}: {}\n", memory.peak_operation,
                   operation_text(program, program.operations[memory.peak_operation]));
  }
  return text;
}

std::string ranks_text(const StepProgram& program, const SymmetryProof& proof) {
  if (program.groups.empty()) return {};
  std::vector<std::string> groups;
  for (const ProgramGroup& group : program.groups) {
    groups.push_back(
        format("{} of {}", group.name, with_thousands(static_cast<int64_t>(group.ranks.size()))));
  }
  return format(
      "Rank {} of {}, in groups {}\nProved for all ranks: they run the same operations over {} groups (by "
      "symmetry)\n\n",
      program.rank, with_thousands(proof.world_size), join(groups, ", "),
      with_thousands(static_cast<int64_t>(proof.groups)));
}

std::string collective_table(const StepProgram& program) {
  const std::vector<CollectiveTotal> totals = collective_totals(program);
  if (totals.empty()) return {};
  std::string text = "Collectives per step, of this rank\n";
  add_line(text, "", {"number", "bytes", "in bytes"});
  for (std::size_t g = 0; g < program.groups.size(); ++g) {
    CollectiveTotal sum;
    for (const CollectiveTotal& total : totals) {
      if (total.group != static_cast<int>(g)) continue;
      add_line(text, format("{} {}", program.groups[g].name, op_name(total.kind)),
               {with_thousands(total.count), human_bytes(total.bytes), with_thousands(total.bytes)});
      sum.count += total.count;
      sum.bytes += total.bytes;
    }
    add_line(text, format("{} in all", program.groups[g].name),
             {with_thousands(sum.count), human_bytes(sum.bytes), with_thousands(sum.bytes)});
  }
  return text + "\n";
}

}  // namespace

std::string render_plan(const ModelSpec& model, const StepProgram& program, const PlanText& text) {
  std::string plan = format("{}: {} parameters ({}), {} units, {} blocks, family {}\n", text.title,
                            human_count(model.parameter_count()), with_thousands(model.parameter_count()),
                            model.units.size(), model.blocks.size(), model.family);
  plan += format(
      "{} FLOPs per token at sequence length {}; {} tokens per step in {} micro-batch{} per rank\n\n",
      human_count(static_cast<int64_t>(model.flops_per_token(text.seq_len))), text.seq_len,
      with_thousands(text.tokens_per_step), program.micro_batches, program.micro_batches == 1 ? "" : "es");
  plan += ranks_text(program, text.proof);
  plan += "Units\n" + unit_table(model, program) + "\n";
  plan += "Blocks, per micro-batch\n" + block_table(program) + "\n";
  plan += collective_table(program);
  plan += "Memory at the peak, per rank\n" + memory_table(program) + "\n";
  plan +=
      format("Step program: {}, {} operations\n", program_kind_name(program.kind), program.operations.size());
  plan += operation_table(program, text.table);
  return plan;
}

}  // namespace stepforge
