// SPDX-License-Identifier: Apache-2.0
// Loads state dicts: everything is compared before anything is written.
#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/tensor_slice.h"
#include "stepforge/comm/gather.h"
#include "stepforge/fsdp/state_dict.h"
#include "stepforge/fsdp/tensor_slices.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

using Shape = std::vector<int64_t>;

/// A slice of a tensor, and a tensor of the slice's sizes: the values to read, or the memory to write.
struct Part {
  TensorSlice slice;
  at::Tensor values;
};

/// The slice of a scalar has no dimensions.
Part whole_part(const at::Tensor& tensor) {
  const TensorSlice slice = whole_slice(tensor.sizes().vec());
  return {slice, tensor.view(slice.sizes)};
}

at::Tensor inside(const Part& part, const TensorSlice& slice) {
  TensorSlice relative = slice;
  for (size_t d = 0; d < slice.sizes.size(); ++d) relative.offsets[d] -= part.slice.offsets[d];
  return part_of(part.values, relative);
}

/// One tensor to write, and its parts on this rank.
struct Target {
  const StateEntry* entry = nullptr;
  Shape shape;
  std::vector<Part> parts;
  at::ScalarType type = at::kFloat;
};

Target target_of(const StateSource& source, const StateEntry& entry) {
  if (entry.unit < 0) {
    return {&entry, entry.whole.sizes().vec(), {whole_part(entry.whole.detach())}, entry.whole.scalar_type()};
  }
  const StateUnit& unit = source.units.at(static_cast<size_t>(entry.unit));
  const ParameterSpec& parameter = unit.store->spec().parameters.at(entry.parameter);
  Target target{&entry, whole_shape(parameter), {}, unit.shard.scalar_type()};
  for (const ShardSlice& held : parts_of_whole(*unit.store, entry.parameter)) {
    target.parts.push_back({held.slice, part_of(unit.shard, held)});
  }
  return target;
}

/// The error in a value's slices, or "".
std::string slice_fault(const LocalValue& value) {
  if (value.data.dim() != 1) return "has data of more than one dimension";
  const TensorSlice whole = whole_slice(value.global_shape);
  for (const ShardSlice& held : value.slices) {
    const auto text = [&] {
      return format("has a slice {} at {}", shape_text(held.slice.sizes), shape_text(held.slice.offsets));
    };
    if (held.slice.sizes.size() != whole.sizes.size() || held.slice.offsets.size() != whole.sizes.size() ||
        !contains(whole, held.slice)) {
      return text() + ", which is not inside " + shape_text(value.global_shape);
    }
    if (held.local < 0 || held.local > value.data.numel() - held.elements()) {
      return format("{}, which begins at element {} of data with {} elements", text(), held.local,
                    value.data.numel());
    }
  }
  return "";
}

/// Why `value` cannot be loaded into `target`, or "".
std::string value_fault(const StateValue& value, const Target& target, bool assign) {
  const auto* local = std::get_if<LocalValue>(&value);
  const at::Tensor& data = local != nullptr ? local->data : std::get<at::Tensor>(value);
  if (!data.defined() || data.is_meta()) return "has no data";
  const Shape shape = local != nullptr ? local->global_shape : data.sizes().vec();
  if (shape != target.shape)
    return format("has the shape {}, expected {}", shape_text(shape), shape_text(target.shape));
  if (local != nullptr) {
    const std::string fault = slice_fault(*local);
    if (!fault.empty()) return fault;
  }
  if (assign) {
    if (target.entry->unit >= 0)
      return "shares the buffer of its unit and can only be copied: load it without assign";
    return local != nullptr ? "is a part; only a whole tensor can be assigned" : "";
  }
  if (target.entry->unit < 0 && target.entry->whole.is_meta())
    return "is on the meta device: materialize it first, or load with assign";
  const at::ScalarType type = data.scalar_type();
  if (type != target.type && !(at::isFloatingType(type) && at::isFloatingType(target.type)))
    return format("is of type {}, expected {}", c10::toString(type), c10::toString(target.type));
  return "";
}

/// The parts of a given value.
std::vector<Part> parts_of(const StateValue& value) {
  if (const auto* whole = std::get_if<at::Tensor>(&value)) return {whole_part(whole->detach())};
  const auto& local = std::get<LocalValue>(value);
  std::vector<Part> parts;
  for (const ShardSlice& held : local.slices)
    parts.push_back({held.slice, part_of(local.data.detach(), held)});
  return parts;
}

/// Whether `parts` overlap or do not cover a part of the target, or "".
std::string coverage_fault(const std::vector<Part>& parts, const Target& target) {
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (intersection(parts[i].slice, parts[j].slice))
        return format("has slices that overlap: {} and {}", slice_text(parts[j].slice),
                      slice_text(parts[i].slice));
    }
  }
  for (const Part& own : target.parts) {
    int64_t covered = 0;
    for (const Part& part : parts) {
      if (const auto common = intersection(own.slice, part.slice)) covered += common->elements();
    }
    if (covered != own.slice.elements()) {
      return format("has slices that cover {} of the {} elements that this rank needs, {} of {}", covered,
                    own.slice.elements(), slice_text(own.slice), shape_text(target.shape));
    }
  }
  return "";
}

struct Plan {
  std::vector<std::pair<Target, const StateValue*>> transfers;
  LoadReport report;
  std::vector<std::string> faults;
};

/// Sorts the names of entries into loaded and missing ones.
LoadReport report_of(const StateSource& source, const std::function<bool(size_t)>& is_given,
                     const LoadStateOptions& options) {
  LoadReport report;
  for (size_t i = 0; i < source.entries.size(); ++i) {
    const StateEntry& entry = source.entries[i];
    if (is_given(i)) {
      report.loaded.push_back(entry.name);
    } else if (!(entry.frozen && options.ignore_frozen_params)) {
      report.missing.push_back(entry.name);
    }
  }
  std::sort(report.loaded.begin(), report.loaded.end());
  std::sort(report.missing.begin(), report.missing.end());
  return report;
}

/// Compares names.
Plan match_names(const StateSource& source, const StateDict& values, const LoadStateOptions& options) {
  Plan plan;
  plan.report = report_of(source, [&](size_t i) { return values.contains(source.entries[i].name); }, options);
  std::set<std::string_view> known;
  for (const StateEntry& entry : source.entries) {
    known.insert(entry.name);
    const auto found = values.find(entry.name);
    if (found != values.end()) plan.transfers.emplace_back(target_of(source, entry), &found->second);
  }
  for (const auto& [name, value] : values) {
    if (!known.contains(name)) plan.report.unexpected.push_back(name);
  }
  if (!options.strict) return plan;
  const auto add = [&plan](const char* fault, const std::vector<std::string>& names) {
    if (!names.empty()) plan.faults.push_back(format("{}: {}", fault, join(names, ", ")));
  };
  add("missing", plan.report.missing);
  add("unexpected", plan.report.unexpected);
  return plan;
}

/// Compares names, shapes, slices and types.
Plan make_plan(const StateSource& source, const StateDict& values, const LoadStateOptions& options) {
  Plan plan = match_names(source, values, options);
  for (const auto& [target, value] : plan.transfers) {
    std::string fault = value_fault(*value, target, options.assign);
    if (fault.empty() && options.broadcast_from_rank0 && std::holds_alternative<LocalValue>(*value))
      fault = "is a part; rank 0 must give the whole tensor";
    if (fault.empty() && !options.assign) fault = coverage_fault(parts_of(*value), target);
    if (!fault.empty()) plan.faults.push_back(format("{} {}", target.entry->name, fault));
  }
  return plan;
}

/// Throws Error on every rank if any has a fault.
void require_no_fault(Communicator* all, const std::string& fault) {
  constexpr size_t kMaxText = 16384;  // characters of it that other ranks get
  const std::string own = fault.empty() ? "" : "the state dict does not fit: " + fault;
  std::vector<std::string> texts;
  if (all != nullptr) texts = gather_texts(*all, std::string_view(own).substr(0, kMaxText));
  if (!own.empty()) throw Error(own);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty())
      throw Error(format("rank {} refuses its values, so nothing is loaded: {}", rank, texts[rank]));
  }
}

void write(const Target& target, const std::vector<Part>& parts) {
  for (const Part& own : target.parts) {
    for (const Part& part : parts) {
      if (const auto common = intersection(own.slice, part.slice))
        inside(own, *common).copy_(inside(part, *common));
    }
  }
}

/// Assigns or copies `tensor`.
void load(const Target& target, const at::Tensor& tensor, bool assign) {
  if (assign) {
    at::TensorImpl* own = target.entry->whole.unsafeGetTensorImpl();
    own->set_allow_tensor_metadata_change(true);
    return own->shallow_copy_from(tensor.detach().getIntrusivePtr());
  }
  write(target, {whole_part(tensor.detach())});
}

/// Rank 0 sends which entries it has, then their values one by one.
LoadReport load_from_rank0(const StateSource& source, const StateDict& values,
                           const LoadStateOptions& options) {
  const bool reads = source.all->rank() == 0;
  Plan plan = reads ? make_plan(source, values, options) : Plan{};
  require_no_fault(source.all, join(plan.faults, "; "));
  std::vector<const StateValue*> given(source.entries.size());
  for (const auto& [target, value] : plan.transfers)
    given[static_cast<size_t>(target.entry - source.entries.data())] = value;
  std::vector<uint8_t> present(given.size());
  for (size_t i = 0; i < given.size(); ++i) present[i] = given[i] != nullptr ? 1 : 0;
  source.all->broadcast(std::as_writable_bytes(std::span(present)), 0);
  if (!reads) plan.report = report_of(source, [&](size_t i) { return present[i] != 0; }, options);
  for (size_t i = 0; i < present.size(); ++i) {
    if (present[i] == 0) continue;
    const Target target = target_of(source, source.entries[i]);
    const at::Tensor sent = reads ? std::get<at::Tensor>(*given[i]).to(target.type).contiguous()
                                  : at::empty(target.shape, target.type);
    source.all->broadcast(bytes_of(sent), 0);
    load(target, sent, options.assign);
  }
  return plan.report;
}

}  // namespace

LoadReport load_state_dict(const StateSource& source, const StateDict& values,
                           const LoadStateOptions& options) {
  const at::NoGradGuard no_grad;
  if (options.broadcast_from_rank0 && source.all != nullptr) return load_from_rank0(source, values, options);
  Plan plan = make_plan(source, values, options);
  require_no_fault(source.all, join(plan.faults, "; "));
  for (const auto& [target, value] : plan.transfers) {
    if (const auto* whole = std::get_if<at::Tensor>(value)) {
      load(target, *whole, options.assign);
    } else {
      write(target, parts_of(*value));
    }
  }
  return plan.report;
}

}  // namespace stepforge
