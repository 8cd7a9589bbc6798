// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/bind.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Compares what the program says of one subject with what was built.
class Comparison {
 public:
  explicit Comparison(std::string subject) : subject_(std::move(subject)) {}

  template <typename Value>
  void require(std::string_view property, const Value& planned, const Value& built) const {
    if (planned == built) return;
    throw Error(
        format("the step program does not fit the storage: {} of {} is {} in the program, but {} in "
               "the storage; build both from the same rank layout",
               property, subject_, planned, built));
  }

 private:
  std::string subject_;
};

std::string text_of(const std::vector<int>& ranks) {
  std::vector<std::string> texts;
  for (const int rank : ranks) texts.push_back(format("{}", rank));
  return join(texts, ", ");
}

void check_unit(const ProgramUnit& planned, const UnitStore& built) {
  const Comparison unit("unit " + planned.name);
  const UnitLayout& layout = built.layout();
  unit.require("the name", planned.name, built.spec().name);
  unit.require("the shard group", planned.shard_group, layout.shard_group);
  unit.require("the replica group", planned.replica_group, layout.replica_group());
  unit.require("offloading", planned.offloaded, layout.offloaded);
  unit.require("residency", planned.resident, built.resident());
  const int64_t joined = built.shards().joined_size();
  unit.require("the number of gathered bytes", planned.gathered_bytes, joined * dtype_bytes(layout.gather));
  unit.require("the number of reduced bytes", planned.reduced_bytes, joined * dtype_bytes(layout.reduce));
}

}  // namespace

void check_binding(const StepProgram& program, const Model& model, const ModelStore& store) {
  const Comparison whole("the model");
  whole.require("the number of units", program.units.size(), store.size());
  whole.require("the number of blocks", program.blocks.size(), model.blocks.size() + model.heads.size());
  for (size_t u = 0; u < store.size(); ++u) check_unit(program.units[u], store.unit(u));
  const RankLayout& layout = store.groups().layout();
  whole.require("the rank", program.rank, layout.id.rank);
  whole.require("the number of groups", program.groups.size(), layout.groups.size());
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const Comparison group(format("group {}", g));
    group.require("the name", program.groups[g].name, layout.groups[g].name);
    group.require("the list of ranks", text_of(program.groups[g].ranks), text_of(layout.groups[g].ranks));
  }
}

}  // namespace stepforge
