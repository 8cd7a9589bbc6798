// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

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
  const Operation& received = receiver.operations[receive];
  if (sent.tag != received.tag) {
    throw ProgramError(receiver, receive,
                       format("it expects tag {}, but the message at its turn is {} with tag {}",
                              received.tag, on_rank(sender, send), sent.tag));
  }
  if (sent.bytes != received.bytes) {
    throw ProgramError(
        receiver, receive,
        format("it expects {} bytes, but {} sends {}", received.bytes, on_rank(sender, send), sent.bytes));
  }
  if (sent.micro_batch != received.micro_batch) {
    throw ProgramError(receiver, receive,
                       format("it expects micro-batch {}, but {} sends micro-batch {}", received.micro_batch,
                              on_rank(sender, send), sent.micro_batch));
  }
}

void check_channel(const StepProgram& sender, const StepProgram& receiver, const Channel& channel) {
  const std::size_t pairs = std::min(channel.sends.size(), channel.receives.size());
  for (std::size_t i = 0; i < pairs; ++i) check_pair(sender, channel.sends[i], receiver, channel.receives[i]);
  if (channel.sends.size() > pairs)
    throw ProgramError(sender, channel.sends[pairs], format("rank {} never receives it", receiver.rank));
  if (channel.receives.size() > pairs)
    throw ProgramError(receiver, channel.receives[pairs], format("rank {} never sends it", sender.rank));
}

/// The collectives of each group, in list order.
std::map<std::string, std::vector<std::size_t>> collectives_by_group(const StepProgram& program) {
  std::map<std::string, std::vector<std::size_t>> found;
  for (std::size_t i = 0; i < program.operations.size(); ++i)
    if (is_collective(program.operations[i]))
      found[group_key(element(program.groups, program.operations[i].group))].push_back(i);
  return found;
}

std::string unit_name(const StepProgram& program, const Operation& operation) {
  return operation.unit < 0 ? std::string() : element(program.units, operation.unit).name;
}

/// Compares `mine` with the collectives of the group's first rank.
void compare(const StepProgram& first, const std::vector<std::size_t>& theirs, const StepProgram& program,
             const std::vector<std::size_t>& mine, const std::string& group) {
  const std::size_t common = std::min(theirs.size(), mine.size());
  for (std::size_t i = 0; i < common; ++i) {
    const Operation& a = first.operations[theirs[i]];
    const Operation& b = program.operations[mine[i]];
    if (a.kind != b.kind || unit_name(first, a) != unit_name(program, b)) {
      throw ProgramError(
          program, mine[i],
          format("collective {} over {} is another one than {}", i, group, on_rank(first, theirs[i])));
    }
    if (a.bytes != b.bytes) {
      throw ProgramError(program, mine[i],
                         format("collective {} over {} has {} bytes, but {} has {}", i, group, b.bytes,
                                on_rank(first, theirs[i]), a.bytes));
    }
  }
  if (mine.size() > common) {
    throw ProgramError(program, mine[common],
                       format("collective {} over {} has no partner on rank {}", common, group, first.rank));
  }
  if (theirs.size() > common) {
    throw ProgramError(
        first, theirs[common],
        format("collective {} over {} has no partner on rank {}", common, group, program.rank));
  }
}

bool has_group(const StepProgram& program, const std::string& key) {
  for (const ProgramGroup& group : program.groups)
    if (group_key(group) == key) return true;
  return false;
}

}  // namespace

void check_messages(std::span<const StepProgram> all_ranks) {
  std::map<std::pair<int, int>, Channel> channels;  // (from, to)
  for (const StepProgram& program : all_ranks) {
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      const Operation& operation = program.operations[i];
      if (operation.kind == OpKind::send)
        channels[{program.rank, operation.peer}].sends.push_back(i);
      else if (operation.kind == OpKind::receive)
        channels[{operation.peer, program.rank}].receives.push_back(i);
    }
  }
  for (const auto& [ends, channel] : channels) {
    check_channel(all_ranks[static_cast<std::size_t>(ends.first)],
                  all_ranks[static_cast<std::size_t>(ends.second)], channel);
  }
}

void check_collectives(std::span<const StepProgram> all_ranks) {
  std::vector<std::map<std::string, std::vector<std::size_t>>> collectives;
  collectives.reserve(all_ranks.size());
  for (const StepProgram& program : all_ranks) collectives.push_back(collectives_by_group(program));
  for (const StepProgram& program : all_ranks) {
    for (const auto& [key, mine] : collectives[static_cast<std::size_t>(program.rank)]) {
      const auto group = static_cast<std::size_t>(program.operations[mine.front()].group);
      for (const int rank : program.groups[group].ranks) {
        if (!has_group(all_ranks[static_cast<std::size_t>(rank)], key)) {
          throw ProgramError(
              program, mine.front(),
              format("rank {} is a member of {} here, but has no such group itself", rank, key));
        }
      }
      const auto first = static_cast<std::size_t>(program.groups[group].ranks.front());
      const auto theirs = collectives[first].find(key);
      compare(all_ranks[first],
              theirs == collectives[first].end() ? std::vector<std::size_t>{} : theirs->second, program, mine,
              key);
    }
    for (const ProgramGroup& group : program.groups) {
      const auto first = static_cast<std::size_t>(group.ranks.front());
      const std::string key = group_key(group);
      const auto theirs = collectives[first].find(key);
      if (theirs != collectives[first].end() &&
          !collectives[static_cast<std::size_t>(program.rank)].contains(key)) {
        compare(all_ranks[first], theirs->second, program, {}, key);
      }
    }
  }
}

}  // namespace stepforge
