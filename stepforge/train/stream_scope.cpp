// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/stream_scope.h"

#include <exception>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace stepforge {

namespace {

void put_after(const c10::Stream& first, const c10::Stream& second) {
  c10::Event end(first.device_type());
  end.record(first);
  end.block(second);
}

}  // namespace

StreamScope::StreamScope(const std::optional<c10::Stream>& stream) : stream_(stream) {
  if (!stream_) return;
  put_after(c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()), *stream_);
  guard_.emplace(*stream_);
}

StreamScope::~StreamScope() {
  if (!stream_) return;
  const c10::Stream outer = guard_->original_stream();
  guard_.reset();
  try {
    put_after(*stream_, outer);
  } catch (
      const std::
          exception&) {  // NOLINT(bugprone-empty-catch): the device has failed, and every later call says so
  }
}

}  // namespace stepforge
