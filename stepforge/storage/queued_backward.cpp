// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/queued_backward.h"

#include <cstddef>

namespace stepforge {

namespace {

/// While it exists, writes of gradients of the units go to the queue.
class Deferral {
 public:
  Deferral(ModelStore& store, std::span<const int> units, GradientQueue& queue)
      : store_(store), units_(units) {
    defer_to(&queue);
  }
  ~Deferral() { defer_to(nullptr); }
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

  void finish_gradients() {
    for (const int index : units_) {
      UnitStore& unit = store_.unit(static_cast<std::size_t>(index));
      if (unit.trained()) unit.finish_gradient();
    }
  }

 private:
  void defer_to(GradientQueue* queue) {
    for (const int index : units_)
      for (Parameter& parameter : store_.unit(static_cast<std::size_t>(index)).parameters())
        parameter.defer_to(queue);
  }

  ModelStore& store_;
  std::span<const int> units_;
};

}  // namespace

void queued_backward(ModelStore& store, std::span<const int> units, GradientQueue& queue,
                     const std::function<void()>& backward) {
  Deferral deferral(store, units, queue);
  backward();
  deferral.finish_gradients();
}

}  // namespace stepforge
