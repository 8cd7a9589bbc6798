// What every engine asks of the words of a call before it starts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace stepforge {

/// The number of `rank` among `ranks`. Throws Error unless they ascend, lie in a world of `size` and hold
/// `rank`.
int member_number(const std::string& group, const std::vector<int>& ranks, int rank, int size);

/// Throws Error unless `whole` is `size` times `part`.
void check_parts(std::size_t part_bytes, std::size_t whole_bytes, int size);

/// Throws Error unless `root` is the number of a member.
void check_root(int root, int size);

}  // namespace stepforge
