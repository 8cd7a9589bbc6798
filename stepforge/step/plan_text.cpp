// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/plan_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/step/collectives.h"
#include "stepforge/step/memory.h"
#include "stepforge/step/repetition.h"

namespace stepforge {

namespace {

/// A line of a table. Lines with equal cells of one stage are alike.
struct Row {
  std::string name;
  std::vector<std::string> cells;
  int stage = 0;
};

void add_line(std::string& text, const std::string& name, const std::vector<std::string>& cells,
              std::size_t name_width = 34) {
  text += format("  {:<{}}", name, name_width);
  for (const std::string& cell : cells) text += format("  {:>12}", cell);
  text += "\n";
}

/// Three digits, without an exponent.
std::string plain_number(double value) {
  constexpr double kWhole = 1000;
  return value < kWhole ? format("{:.3g}", value) : with_thousands(static_cast<int64_t>(std::llround(value)));
}

std::string duration(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  constexpr double kDay = 86400;
  if (seconds < 1) return format("{} ms", plain_number(1e3 * seconds));
  if (seconds < 2 * kMinute) return format("{:.3g} s", seconds);
  if (seconds < 2 * kHour) return format("{:.3g} minutes", seconds / kMinute);
  return seconds < 2 * kDay ? format("{:.3g} hours", seconds / kHour)
                            : format("{} days", plain_number(seconds / kDay));
}

/// A plain name for a kind of buffer at the peak.
std::string_view plain_kind(BufferKind kind) {
  switch (kind) {
    case BufferKind::gather_slot:
      return "gathered weights";
    case BufferKind::whole_gradient:
      return "gradients before their reduction";
    case BufferKind::gradient_level:
      return "gradients of ordered sums";
    case BufferKind::optimizer:
      return "optimizer state";
    case BufferKind::kv_cache:
      return "keys and values of generation";
    default:
      return buffer_kind_name(kind);
  }
}

/// Breaks long lines at spaces; what follows is indented further.
std::string wrapped(const std::string& text) {
  constexpr std::size_t kWidth = 100;
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t indent = std::min(line.find_first_not_of(' '), kWidth / 2) + 2;
    while (line.size() > kWidth) {
      const std::size_t space = line.rfind(' ', kWidth);
      if (space == std::string::npos || space <= indent) break;
      result += line.substr(0, space) + "\n";
      line = std::string(indent, ' ') + line.substr(space + 1);
    }
    result += line + "\n";
  }
  return result;
}

/// "layers..join" for "layers.3.join".
std::string without_digits(std::string name) {
  std::erase_if(name, [](unsigned char letter) { return std::isdigit(letter) != 0; });
  return name;
}

/// A table in which rows that repeat, alone or in a pattern, are one line: "layers.0 to layers.125, each of
/// 126", "layers.0, layers.2 to layers.30, each of 16". Their names differ in numbers only.
std::string folded(const std::vector<std::string>& headings, const std::vector<Row>& rows) {
  const auto alike = [&](std::size_t i, std::size_t j) {
    return rows[i].cells == rows[j].cells && rows[i].stage == rows[j].stage &&
           without_digits(rows[i].name) == without_digits(rows[j].name);
  };
  std::vector<Row> lines{{"", headings}};
  for (std::size_t begin = 0; begin < rows.size();) {
    const auto [length, times] = find_repetition(begin, rows.size(), 2, alike);
    for (std::size_t i = begin; i < begin + length; ++i) {
      const std::string& last = rows[i + length * (times - 1)].name;
      const std::string second = length > 1 && times > 2 ? ", " + rows[i + length].name : "";
      lines.push_back(
          {times == 1 ? rows[i].name : format("{}{} to {}, each of {}", rows[i].name, second, last, times),
           rows[i].cells});
    }
    begin += length * times;
  }
  // Each column is as wide as it must be, so that a line fits a terminal.
  std::size_t width = 0;
  std::vector<std::size_t> widths(headings.size(), 0);
  for (const Row& line : lines) {
    width = std::max(width, line.name.size());
    for (std::size_t c = 0; c < line.cells.size(); ++c) widths[c] = std::max(widths[c], line.cells[c].size());
  }
  std::string text;
  for (const Row& line : lines) {
    text += format("  {:<{}}", line.name, width);
    for (std::size_t c = 0; c < line.cells.size(); ++c) text += format("  {:>{}}", line.cells[c], widths[c]);
    text += "\n";
  }
  return text;
}

/// The stage of the first block that uses it.
int stage_of_unit(const StepProgram& program, int unit) {
  for (const ProgramBlock& block : program.blocks)
    if (std::ranges::count(block.units, unit) > 0) return block.stage;
  return 0;
}

std::string unit_table(const ModelSpec& model, const StepProgram& program) {
  std::vector<Row> rows;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const bool has_gradient = unit.trainable && program.kind == ProgramKind::train;
    rows.push_back({unit.name,
                    {human_count(unit.elements()), human_bytes(unit.stored_bytes(flat_layout(unit).size)),
                     !unit.trainable ? "frozen" : (has_gradient ? "yes" : "-"),
                     program.units[u].resident ? "resident" : "gathered"},
                    stage_of_unit(program, static_cast<int>(u))});
  }
  return folded({"parameters", "stored bytes", "trained", "when used"}, rows);
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
    int64_t sum = 0;
    for (const int buffer : operation.allocates)
      if (element(program.buffers, buffer).kind == kind) sum += element(program.buffers, buffer).bytes;
    return sum;
  };
  for (const Operation& operation : program.operations) {
    if (operation.block < 0 || operation.micro_batch != 0) continue;
    BlockRow& row = element(rows, operation.block);
    row.saved += bytes(operation, BufferKind::graph) + bytes(operation, BufferKind::weight_inputs);
    row.recomputed = row.recomputed || operation.kind == OpKind::recompute;
    const bool backward = operation.kind == OpKind::backward || operation.kind == OpKind::backward_input ||
                          operation.kind == OpKind::backward_weight;
    if (backward) {
      row.backward_workspace = std::max(row.backward_workspace, operation.workspace);
    } else if (has_trait(operation.kind, kUsesUnits) && operation.kind != OpKind::recompute) {
      row.output = bytes(operation, BufferKind::bundle);
      row.forward_workspace = operation.workspace;
      row.forward_flops = operation.flops;
    }
  }
  return rows;
}

/// "attention+mlp", "3 calls"
std::string parts_text(const std::vector<std::string>& recomputed) {
  const bool calls = std::ranges::any_of(
      recomputed, [](const std::string& name) { return name.find('.') != std::string::npos; });
  return calls ? format("{} call{}", recomputed.size(), recomputed.size() == 1 ? "" : "s")
               : join(recomputed, "+");
}

std::string block_table(const StepProgram& program) {
  std::vector<Row> rows;
  const std::vector<BlockRow> blocks = block_rows(program);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const BlockRow& block = blocks[b];
    std::string again = block.recomputed ? "whole" : parts_text(program.blocks[b].recomputed_regions);
    rows.push_back({program.blocks[b].name,
                    {plain_number(block.forward_flops / 1e9), human_bytes(block.output),
                     human_bytes(block.saved), human_bytes(block.forward_workspace),
                     human_bytes(block.backward_workspace), again.empty() ? "-" : std::move(again)},
                    program.blocks[b].stage});
  }
  return folded({"GFLOP", "result", "saved", "work", "bwd work", "recomputed"}, rows);
}

/// What the recomputation of parts of blocks saves and costs.
std::string recomputed_table(const StepProgram& program) {
  std::vector<Row> rows;
  std::vector<std::vector<std::string>> known;
  std::string names;
  for (const ProgramBlock& block : program.blocks) {
    const std::vector<std::string>& parts = block.recomputed_regions;
    if (parts.empty()) continue;
    rows.push_back({block.name,
                    {human_bytes(block.recomputed_bytes), plain_number(block.recomputed_flops / 1e9)},
                    block.stage});
    if (std::ranges::count(known, parts) > 0) continue;
    known.push_back(parts);
    names += format("  {} and those like it: {}\n", block.name, join(parts, ", "));
  }
  if (rows.empty()) return {};
  return "Recomputed parts, per micro-batch\n" + folded({"not kept", "GFLOP again"}, rows) + wrapped(names) +
         "\n";
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
                               kind == BufferKind::graph || kind == BufferKind::bundle_gradient ||
                               kind == BufferKind::weight_inputs || kind == BufferKind::weight_queue ||
                               kind == BufferKind::routes;
    if (is_activation)
      activations += bytes;
    else
      line(std::string(plain_kind(kind)), bytes);
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
  for (const RankGroup& group : program.groups) {
    groups.push_back(
        format("{} of {}", group.name, with_thousands(static_cast<int64_t>(group.ranks.size()))));
  }
  const std::string alike =
      proof.class_peaks.size() > 1
          ? format("{} programs, one for each rank of a pipeline,", proof.class_peaks.size())
          : "the same operations";
  return format(
      "Rank {} of {}, in groups {}\nProved for all ranks: they run {} over {} groups (by symmetry)\n",
      program.rank, with_thousands(proof.world_size), join(groups, ", "), alike,
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

std::string render_plan(const ModelSpec& model, const ModelSpec& part, const StepProgram& program,
                        const PlanText& text) {
  std::string plan = format("{}: {} parameters ({}), {} units, {} blocks, family {}\n", text.title,
                            human_count(model.parameter_count()), with_thousands(model.parameter_count()),
                            model.units.size(), model.blocks.size(), model.family);
  if (const int64_t active = model.active_parameter_count(); active != model.parameter_count())
    plan += format("{} active parameters per token ({})\n", human_count(active), with_thousands(active));
  plan += format(
      "{} FLOPs per token at sequence length {}; {} tokens per step in {} micro-batch{} per rank\n",
      human_count(static_cast<int64_t>(model.flops_per_token(text.seq_len))), text.seq_len,
      with_thousands(text.tokens_per_step), program.micro_batches, program.micro_batches == 1 ? "" : "es");
  plan += ranks_text(program, text.proof);
  if (!text.verdict.empty()) plan += text.verdict + "\n";
  const std::vector<OperationTime> times = text.times.empty() ? simulate(program, text.machine) : text.times;
  LaneReport report = lane_report(program, times);
  // A simulated operation is late only if its partners on other ranks are.
  report.waiting += std::exchange(report.outside, 0.0);
  plan += format("Predicted step: {}; {}\n", duration(step_seconds(times)), lane_report_text(report));
  plan += format("  on a rank of {}\n", machine_text(text.machine));
  if (!text.rates_note.empty()) plan += format("  {}\n", text.rates_note);
  plan = wrapped(plan) + "\n";
  if (!text.pipeline.empty()) plan += text.pipeline + "\n";
  plan += "Memory at the peak, per rank\n" + memory_table(program) + "\n";
  plan += "Units\n" + unit_table(part, program) + "\n";
  plan += "Blocks, per micro-batch\n" + block_table(program) + "\n" + recomputed_table(program);
  plan += collective_table(program);
  plan += format("Step program: {}, {} operations{}\n", program_kind_name(program.kind),
                 with_thousands(std::ssize(program.operations)),
                 text.table ? "" : "; --program lists them, --all each of them");
  if (text.table) plan += operation_table(program, *text.table);
  return plan;
}

}  // namespace stepforge
