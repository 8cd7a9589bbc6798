// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"
#include "stepforge/step/exchange_cost.h"

namespace stepforge {

namespace {

/// Messages from one rank to another, in order.
struct Channel {
  std::vector<std::size_t> sends;     // operations of the sender
  std::vector<std::size_t> receives;  // operations of the receiver
};

std::string on_rank(const StepProgram& program, std::size_t operation) {
  return format("rank {}, operation {} ({})", program.rank, operation,
                operation_text(program, program.operations[operation]));
}

void check_pair(const StepProgram& sender, std::size_t send, const StepProgram& receiver,
                std::size_t receive) {
  const Operation& sent = sender.operations[send];
  const Operation& expected = receiver.operations[receive];
  const auto require_equal = [&](const char* field, int64_t want, int64_t have) {
    if (want == have) return;
    throw ProgramError(receiver, receive,
                       format("it expects {} = {}, but the next message, from {}, has {} = {}", field, want,
                              on_rank(sender, send), field, have));
  };
  require_equal("tag", expected.tag, sent.tag);
  require_equal("bytes", expected.bytes, sent.bytes);
  require_equal("micro-batch", expected.micro_batch, sent.micro_batch);
}

void check_channel(const StepProgram& sender, const StepProgram& receiver, const Channel& channel) {
  const std::size_t pairs = std::min(channel.sends.size(), channel.receives.size());
  for (std::size_t i = 0; i < pairs; ++i) check_pair(sender, channel.sends[i], receiver, channel.receives[i]);
  if (channel.sends.size() > pairs)
    throw ProgramError(sender, channel.sends[pairs], format("rank {} never receives it", receiver.rank));
  if (channel.receives.size() > pairs)
    throw ProgramError(receiver, channel.receives[pairs], format("rank {} never sends it", sender.rank));
}

/// One collective: an operation, or what a block exchanges over a group.
struct ListedCollective {
  std::size_t operation = 0;
  int64_t bytes = 0;
};
using Collectives = std::vector<ListedCollective>;

/// The collectives of each group, in list order.
std::map<std::string, Collectives> collectives_by_group(const StepProgram& program) {
  std::map<std::string, Collectives> found;
  for (std::size_t i = 0; i < program.operations.size(); ++i)
    for (const GroupExchange& collective : collectives_of(program.operations[i]))
      found[group_key(element(program.groups, collective.group))].push_back({i, collective.bytes});
  return found;
}

std::string unit_name(const StepProgram& program, const Operation& operation) {
  return operation.unit < 0 ? std::string() : element(program.units, operation.unit).name;
}

/// Compares `mine` with the collectives of the group's first rank.
void compare(const StepProgram& first, const Collectives& theirs, const StepProgram& program,
             const Collectives& mine, const std::string& group) {
  const std::size_t common = std::min(theirs.size(), mine.size());
  for (std::size_t i = 0; i < common; ++i) {
    const auto partner = [&] { return on_rank(first, theirs[i].operation); };
    const Operation& a = first.operations[theirs[i].operation];
    const Operation& b = program.operations[mine[i].operation];
    const auto fail = [&](const std::string& difference) {
      throw ProgramError(program, mine[i].operation,
                         format("collective {} over {} {}", i, group, difference));
    };
    if (a.kind != b.kind || unit_name(first, a) != unit_name(program, b) || a.micro_batch != b.micro_batch)
      fail("differs from " + partner());
    const std::string_view want = collective_of_exchange(first, a);
    const std::string_view have = collective_of_exchange(program, b);
    if (want != have) fail(format("is made by {}, but {} is made by {}", have, partner(), want));
    if (theirs[i].bytes != mine[i].bytes)
      fail(format("has {} bytes, but {} has {}", mine[i].bytes, partner(), theirs[i].bytes));
  }
  const auto require_end = [&](const StepProgram& longer, const Collectives& collectives,
                               const StepProgram& shorter) {
    if (collectives.size() == common) return;
    throw ProgramError(
        longer, collectives[common].operation,
        format("collective {} over {} has no partner on rank {}", common, group, shorter.rank));
  };
  require_end(program, mine, first);
  require_end(first, theirs, program);
}

bool has_group(const StepProgram& program, const std::string& key) {
  return std::ranges::any_of(program.groups, [&](const RankGroup& group) { return group_key(group) == key; });
}

}  // namespace

void check_messages(std::span<const StepProgram> all_ranks) {
  std::map<std::pair<int, int>, Channel> channels;  // (from, to)
  for (const StepProgram& program : all_ranks) {
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      const Operation& operation = program.operations[i];
      if (sends_message(operation.kind))
        channels[{program.rank, operation.peer}].sends.push_back(i);
      else if (receives_message(operation.kind))
        channels[{operation.peer, program.rank}].receives.push_back(i);
    }
  }
  for (const auto& [ends, channel] : channels)
    check_channel(element(all_ranks, ends.first), element(all_ranks, ends.second), channel);
}

void check_collectives(std::span<const StepProgram> all_ranks) {
  std::vector<std::map<std::string, Collectives>> collectives;
  collectives.reserve(all_ranks.size());
  for (const StepProgram& program : all_ranks) collectives.push_back(collectives_by_group(program));
  const Collectives none;
  const auto over = [&](const std::string& key, int rank) -> const Collectives& {
    const auto found = element(collectives, rank).find(key);
    return found == element(collectives, rank).end() ? none : found->second;
  };
  for (const StepProgram& program : all_ranks) {
    for (const RankGroup& group : program.groups) {
      const std::string key = group_key(group);
      const Collectives& mine = over(key, program.rank);
      for (const int rank : group.ranks) {
        if (mine.empty() || has_group(element(all_ranks, rank), key)) continue;
        throw ProgramError(program, mine.front().operation,
                           format("rank {} is a member of {} here, but has no such group itself", rank, key));
      }
      const int first = group.ranks.front();
      compare(element(all_ranks, first), over(key, first), program, mine, key);
    }
  }
}

}  // namespace stepforge
