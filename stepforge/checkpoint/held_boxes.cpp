#include "stepforge/checkpoint/held_boxes.h"

#include <algorithm>
#include <utility>

namespace stepforge {

namespace {

/// Deals out what all replicas hold, element after element.
class ReplicaShare {
 public:
  ReplicaShare(int64_t total, int64_t replica, int64_t replicas)
      : begin_(total * replica / replicas), end_(total * (replica + 1) / replicas) {}

  /// This replica's part of the next box, of which each element counts `weight`.
  std::vector<HeldBox> take(const HeldBox& held, int64_t weight) {
    const int64_t elements = held.box.elements();
    const auto border = [&](int64_t at) {
      return std::clamp((at - passed_ + weight - 1) / weight, int64_t{0}, elements);
    };
    const int64_t begin = border(begin_);
    const int64_t end = border(end_);
    passed_ += elements * weight;
    return held_range(held, begin, end);
  }

 private:
  int64_t begin_;
  int64_t end_;
  int64_t passed_ = 0;
};

}  // namespace

std::vector<HeldBox> held_boxes(const UnitStore& unit, const NamedTensor& tensor) {
  return unit.boxes(tensor.parameter, tensor.row, tensor.row + tensor.shape.at(0));
}

std::vector<std::vector<HeldBox>> saved_boxes(const std::vector<NamedTensor>& tensors,
                                              const ModelStore& store,
                                              const std::function<int64_t(size_t unit)>& flats) {
  std::vector<std::vector<HeldBox>> held;
  int64_t total = 0;
  for (const NamedTensor& tensor : tensors) {
    held.push_back(held_boxes(store.unit(tensor.unit), tensor));
    for (const HeldBox& box : held.back()) total += box.box.elements() * flats(tensor.unit);
  }
  const Communicator* replicas = store.groups().replicate();
  if (replicas == nullptr) return held;
  ReplicaShare share(total, replicas->rank(), replicas->size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<HeldBox> own;
    for (const HeldBox& box : held[i]) {
      for (HeldBox& part : share.take(box, flats(tensors[i].unit))) own.push_back(std::move(part));
    }
    held[i] = std::move(own);
  }
  return held;
}

}  // namespace stepforge
