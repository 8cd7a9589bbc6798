// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/gradient_queue.h"

#include <utility>

#include "stepforge/nn/parameter.h"

namespace stepforge {

void GradientQueue::add(Parameter& parameter, GradientWrite write) {
  pending_.push_back({&parameter, std::move(write)});
}

void GradientQueue::run() {
  while (!pending_.empty()) {
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    next.parameter->write_now(next.write);
  }
}

}  // namespace stepforge
