#include "stepforge/comm/group_rules.h"

#include <algorithm>
#include <functional>

#include "stepforge/base/format.h"

namespace stepforge {

int member_number(const std::string& group, const std::vector<int>& ranks, int rank, int size) {
  const bool ascend = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (ranks.empty() || !ascend || ranks.front() < 0 || ranks.back() >= size) {
    throw Error(
        format("group \"{}\": its {} ranks must ascend and lie in a world of {}", group, ranks.size(), size));
  }
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) {
    throw Error(
        format("group \"{}\": rank {} makes it but is not one of its {} ranks", group, rank, ranks.size()));
  }
  return static_cast<int>(found - ranks.begin());
}

void check_parts(std::size_t part_bytes, std::size_t whole_bytes, int size) {
  if (part_bytes * static_cast<std::size_t>(size) != whole_bytes) {
    throw Error(format("{} parts of {} bytes are not a whole of {} bytes", size, part_bytes, whole_bytes));
  }
}

void check_root(int root, int size) {
  if (root < 0 || root >= size) {
    throw Error(format("broadcast from member {} of a group of {}", root, size));
  }
}

std::string making_text(const std::string& group) {
  return format("the making of group \"{}\"", group);
}

std::string disagreement_text(const std::string& group, uint64_t number, int rank, const CollectiveCall& call,
                              int other_rank, const CollectiveCall& other_call) {
  return format(
      "the ranks of group \"{}\" disagree about their call {}: rank {} called {}, rank {} called {}", group,
      number, rank, collective_text(call), other_rank, collective_text(other_call));
}

}  // namespace stepforge
