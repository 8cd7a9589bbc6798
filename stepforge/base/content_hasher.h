// SPDX-License-Identifier: Apache-2.0
// The content hash (files.h) of bytes that come in pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct XXH3_state_s;

namespace stepforge {

class ContentHasher {
 public:
  ContentHasher();

  void update(std::span<const std::byte> bytes);
  /// Of all bytes so far: the same as content_hash() of them in one piece.
  std::string hash() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace stepforge
