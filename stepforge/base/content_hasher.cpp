// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/content_hasher.h"

#include <new>

#include <xxhash.h>

#include "stepforge/base/format.h"

namespace stepforge {

void ContentHasher::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

ContentHasher::ContentHasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void ContentHasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

std::string ContentHasher::hash() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace stepforge
