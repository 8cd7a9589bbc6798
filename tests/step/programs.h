// SPDX-License-Identifier: Apache-2.0
// Programs of several ranks, written by hand, and tools to damage good programs.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/step/checker.h"
#include "stepforge/step/happens_before.h"
#include "stepforge/step/passes.h"
#include "stepforge/step/program.h"
#include "tests/step/data_parallel.h"
#include "tests/step/fixture.h"
#include "tests/step/pipeline.h"
#include "tests/support/throws.h"

namespace stepforge::testing {

using Programs = std::vector<StepProgram>;

/// Two pipeline stages in a 1F1B schedule: rank 0 has the embedding and a layer, rank 1 a layer and the head.
inline Programs pipeline_1f1b(int micro_batches) {
  return pipeline(ScheduleKind::one_f_one_b, 2, 1, micro_batches, 2);
}

/// The programs of `shards` x `replicas` ranks.
inline Programs programs_of(const ModelSpec& model, int shards, int replicas, RankOptions options) {
  Programs programs;
  for (int rank = 0; rank < shards * replicas; ++rank) {
    options.set_ranks(rank, shards, replicas);
    programs.push_back(build_step(model, options));
  }
  return programs;
}

/// `shards` x `replicas` ranks with the small model, gathered in bf16.
inline Programs sharded(int shards, int replicas, int micro_batches, RankOptions options) {
  options.micro_batches = micro_batches;
  options.plan.gather = DType::bf16;
  return programs_of(small_model(), shards, replicas, options);
}

struct Match {
  OpKind kind;
  int unit = -1;
  int block = -1;
  int micro_batch = -1;
};

/// The first matching operation from `begin` on; fields of -1 match all.
inline std::size_t find(const StepProgram& program, const Match& match, std::size_t begin = 0) {
  for (std::size_t i = begin; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (operation.kind == match.kind && (match.unit < 0 || operation.unit == match.unit) &&
        (match.block < 0 || operation.block == match.block) &&
        (match.micro_batch < 0 || operation.micro_batch == match.micro_batch)) {
      return i;
    }
  }
  ADD_FAILURE() << "no operation " << op_name(match.kind);
  return 0;
}

/// Reorders the operations (`order[new index] = old index`; missing ones are erased) and renumbers `needs`.
/// An operation that needed one that is erased or comes later now needs the one before that on its lane.
inline void rearrange(StepProgram& program, const std::vector<std::size_t>& order) {
  std::vector<int> new_index(program.operations.size(), -1);
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < order.size(); ++i) {
    new_index[order[i]] = static_cast<int>(i);
    operations.push_back(program.operations[order[i]]);
  }
  const auto lane = [&](int old) { return program.operations[static_cast<std::size_t>(old)].lane; };
  for (std::size_t i = 0; i < operations.size(); ++i) {
    std::vector<int> needs;
    for (const int need : operations[i].needs) {
      int old = need;
      while (old >= 0 && (lane(old) != lane(need) || new_index[static_cast<std::size_t>(old)] < 0 ||
                          new_index[static_cast<std::size_t>(old)] >= static_cast<int>(i))) {
        --old;
      }
      if (old >= 0) needs.push_back(new_index[static_cast<std::size_t>(old)]);
    }
    operations[i].needs = needs;
  }
  program.operations = std::move(operations);
}

inline std::vector<std::size_t> list_order(const StepProgram& program) {
  std::vector<std::size_t> order(program.operations.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  return order;
}

inline void erase(StepProgram& program, std::size_t at) {
  std::vector<std::size_t> order = list_order(program);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(at));
  rearrange(program, order);
}

/// Moves the operation at `from` before the one at `to`.
inline void move(StepProgram& program, std::size_t from, std::size_t to) {
  std::vector<std::size_t> order = list_order(program);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(from));
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(to > from ? to - 1 : to), from);
  rearrange(program, order);
}

/// Inserts a copy of the operation, without its buffers, after it.
inline void repeat(StepProgram& program, std::size_t at) {
  Operation copy = program.operations[at];
  copy.allocates.clear();
  copy.frees.clear();
  insert_operations(program.operations, {{at + 1, copy}});
}

/// The checker refuses the programs at this rank, with these texts in the operation and in the reason.
inline void expect_refused(const Programs& programs, int rank, const std::string& operation,
                           const std::string& reason) {
  try {
    check_programs(programs);
    ADD_FAILURE() << "accepted; expected: " << reason;
  } catch (const ProgramError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.rank(), rank) << text;
    EXPECT_CONTAINS(text, format("rank {}, ", rank));
    const std::size_t end = text.find("): ");
    const std::string head = text.substr(0, end == std::string::npos ? text.find(": ") : end);
    EXPECT_CONTAINS(head, operation);
    EXPECT_CONTAINS(text.substr(head.size()), reason);
  }
}

/// The peak of account(), by comparing every operation with every other.
inline int64_t peak_by_brute_force(const StepProgram& program) {
  const HappensBefore before(program);
  int64_t live = 0;
  for (const Buffer& buffer : program.buffers)
    live += buffer.persistent && buffer.kind != BufferKind::host ? buffer.bytes : 0;
  int64_t peak = live;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    for (const int buffer : operation.allocates) live += element(program.buffers, buffer).bytes;
    std::map<Lane, int64_t> beside;
    for (std::size_t j = 0; j < program.operations.size(); ++j) {
      const Operation& other = program.operations[j];
      if (other.lane == operation.lane || before(i, j) || before(j, i)) continue;
      beside[other.lane] = std::max(beside[other.lane], other.workspace);
    }
    int64_t bytes = live + operation.workspace;
    for (const auto& [lane, workspace] : beside) bytes += workspace;
    peak = std::max(peak, bytes);
    for (const int buffer : operation.frees) live -= element(program.buffers, buffer).bytes;
  }
  return peak;
}

}  // namespace stepforge::testing
