#include "spec/flat_layout.h"

namespace stepforge {

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

FlatLayout flat_layout(const UnitSpec& unit) {
  FlatLayout layout;
  layout.offsets.reserve(unit.parameters.size());
  int64_t end = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    const int64_t offset = round_up(end, kTensorAlignment);
    layout.offsets.push_back(offset);
    end = offset + parameter.elements();
  }
  layout.size = round_up(end, kUnitBorder);
  return layout;
}

int64_t shard_elements(int64_t size, int shards) {
  return round_up((size + shards - 1) / shards, kUnitBorder);
}

}  // namespace stepforge
