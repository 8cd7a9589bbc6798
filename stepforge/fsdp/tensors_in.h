// SPDX-License-Identifier: Apache-2.0
// Finding the tensors in the arguments and results of a module's forward.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stepforge {

/// A struct with a member `template <typename V> void visit_tensors(V&& visit)` that calls visit(member) for
/// each member that is or holds a tensor.
template <typename T>
concept VisitsTensors = requires(T& value) { value.visit_tensors([](auto&) {}); };

namespace detail {

template <typename T>
struct HoldsTensors : std::bool_constant<VisitsTensors<T>> {};
template <>
struct HoldsTensors<at::Tensor> : std::true_type {};
template <typename T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <typename T, typename A>
struct HoldsTensors<std::vector<T, A>> : HoldsTensors<T> {};
template <typename T, size_t N>
struct HoldsTensors<std::array<T, N>> : HoldsTensors<T> {};
template <typename K, typename T, typename... More>
struct HoldsTensors<std::map<K, T, More...>> : HoldsTensors<T> {};
template <typename... T>
struct HoldsTensors<std::tuple<T...>> : std::disjunction<HoldsTensors<T>...> {};
template <typename A, typename B>
struct HoldsTensors<std::pair<A, B>> : std::disjunction<HoldsTensors<A>, HoldsTensors<B>> {};

}  // namespace detail

/// Whether visit_tensors can find tensors in a T.
template <typename T>
inline constexpr bool holds_tensors = detail::HoldsTensors<std::remove_cvref_t<T>>::value;

/// Calls visit(tensor) for each tensor in `value`, which visit may replace. Types without tensors are
/// skipped.
template <typename T, typename V>
void visit_tensors(T& value, V&& visit) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visit(value);
  } else if constexpr (VisitsTensors<T>) {
    value.visit_tensors([&](auto& member) { visit_tensors(member, visit); });
  } else if constexpr (holds_tensors<T>) {
    if constexpr (requires { value.has_value(); }) {
      if (value) visit_tensors(*value, visit);
    } else if constexpr (requires { typename T::mapped_type; }) {
      for (auto& entry : value) visit_tensors(entry.second, visit);
    } else if constexpr (requires { value.begin(); }) {
      for (auto& element : value) visit_tensors(element, visit);
    } else {
      std::apply([&](auto&... element) { (visit_tensors(element, visit), ...); }, value);
    }
  }
}

}  // namespace stepforge
