// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/call_failure.h"

namespace stepforge {

void CallFailure::set(std::exception_ptr failure, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) return;
  failure_ = std::move(failure);
  if (on_failure_) on_failure_(reason);
}

void CallFailure::close() {
  const std::lock_guard lock(mutex_);
  on_failure_ = {};
}

void CallFailure::rethrow() {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

}  // namespace stepforge
