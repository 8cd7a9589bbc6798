#include "stepforge/train/agreement.h"

#include <span>
#include <vector>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/gather.h"

namespace stepforge {

void require_agreement(Communicator* all, std::string_view what, const std::string& value) {
  if (all == nullptr) return;
  const std::string own = content_hash(std::as_bytes(std::span(value)));
  const std::vector<char> hashes = gather_values(*all, own);
  const auto hash_of = [&](int rank) {
    return std::string_view(hashes.data() + static_cast<size_t>(rank) * own.size(), own.size());
  };
  std::vector<std::string> others;
  for (int rank = 1; rank < all->size(); ++rank) {
    if (hash_of(rank) != hash_of(0)) others.push_back(format("{}", rank));
  }
  if (others.empty()) return;
  throw UsageError(
      format("the ranks do not agree: {} of rank {} is not that of rank 0; start all ranks with "
             "the same program, configuration and files",
             what, join(others, ", ")));
}

}  // namespace stepforge
