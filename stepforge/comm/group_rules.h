// What every engine asks of the words of a call before it starts, and what it says of groups and calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/comm/collective.h"
#include "stepforge/comm/communicator.h"

namespace stepforge {

/// The number of `rank` among `ranks`. Throws Error unless they ascend, lie in a world of `size` and hold
/// `rank`.
int member_number(const std::string& group, const std::vector<int>& ranks, int rank, int size);

/// Throws Error unless `whole` is `size` times `part`.
void check_parts(std::size_t part_bytes, std::size_t whole_bytes, int size);

/// Throws Error unless `root` is the number of a member.
void check_root(int root, int size);

/// Runs one rank's checks of the words of a call. What they throw ends the group, whose other members would
/// wait for that call, and is thrown on.
template <typename Check>
void check_words(Communicator& group, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    group.abort(error.what());
    throw;
  }
}

/// Where a rank is that makes a group: "the making of group "dp_shard"".
std::string making_text(const std::string& group);

/// Why a group ends in which `rank` and `other_rank`, by their numbers in the world, made different calls
/// number `number`.
std::string disagreement_text(const std::string& group, uint64_t number, int rank, const CollectiveCall& call,
                              int other_rank, const CollectiveCall& other_call);

}  // namespace stepforge
