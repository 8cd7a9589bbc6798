#include "train/agreement.h"

#include <span>
#include <vector>

#include "base/files.h"
#include "base/format.h"

namespace stepforge {

void require_agreement(Communicator* all, std::string_view what, const std::string& value) {
  if (all == nullptr) return;
  const std::string own = content_hash(std::as_bytes(std::span(value)));
  std::string hashes(own.size() * static_cast<size_t>(all->size()), '\0');
  all->all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(hashes)));
  std::vector<std::string> others;
  for (int rank = 1; rank < all->size(); ++rank) {
    if (hashes.compare(static_cast<size_t>(rank) * own.size(), own.size(), hashes, 0, own.size()) != 0) {
      others.push_back(format("{}", rank));
    }
  }
  if (others.empty()) return;
  throw UsageError(
      format("the ranks do not agree: {} of rank {} is not that of rank 0; start all ranks with "
             "the same program, configuration and files",
             what, join(others, ", ")));
}

void main_first(Communicator* all, const std::function<void()>& action) {
  if (all == nullptr) return action();
  if (all->rank() == 0) action();
  all->barrier();
  if (all->rank() != 0) action();
}

}  // namespace stepforge
