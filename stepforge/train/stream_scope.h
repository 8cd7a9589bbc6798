// SPDX-License-Identifier: Apache-2.0
// A rank works on a stream of its own, so that ranks that are threads of one process can share a device.
#pragma once

#include <optional>

#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace stepforge {

/// While it exists, `stream` is this thread's current one: after what the outer stream has. What the outer stream gets afterwards is
/// after `stream`. Nothing for nullopt.
class StreamScope {
 public:
  explicit StreamScope(const std::optional<c10::Stream>& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  std::optional<c10::Stream> stream_;
  std::optional<c10::Stream> outer_;  ///< of the same device
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace stepforge
