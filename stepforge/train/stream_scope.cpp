// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/stream_scope.h"

#include <exception>

#include "stepforge/kernels/streams.h"

namespace stepforge {

StreamScope::StreamScope(const std::optional<c10::Stream>& stream) : stream_(stream) {
  if (!stream_) return;
  outer_ = current_stream(stream_->device());
  put_after(*outer_, *stream_);
  guard_.emplace(*stream_);
}

StreamScope::~StreamScope() {
  if (!stream_) return;
  guard_.reset();
  try {
    put_after(*stream_, *outer_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): every later call on the device throws it
  }
}

}  // namespace stepforge
