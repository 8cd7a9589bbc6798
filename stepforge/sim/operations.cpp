// SPDX-License-Identifier: Apache-2.0
// The operations of libtorch that simulated devices have kernels for: those that make tensors and views, and copies.
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "stepforge/base/error.h"
#include "stepforge/sim/boxed_operation.h"
#include "stepforge/sim/guard.h"
#include "stepforge/sim/machine.h"

namespace stepforge::sim {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &device_allocator(), kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys,
                                           c10::dtype_or_default(type));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const c10::DeviceGuard guard(self.device());
  const size_t bytes =
      (static_cast<size_t>(self.storage_offset()) + c10::multiply_integers(size)) * self.element_size();
  if (bytes > self.storage().nbytes()) {
    c10::StorageImpl* const storage = self.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(device_allocator().allocate(bytes));
    storage->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;  // NOLINT(bugprone-return-const-ref-from-parameter): as libtorch declares it
}

/// Of the host's tensors only pinned memory is used later. Other memory is read now; a GPU makes the host wait for that, which is
/// counted.
void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Machine& machine = Machine::get();
  const int stream = current_stream(to.device().index());
  const TensorPlace place(to);
  if (!from.is_pinned()) {
    machine.count_host_wait(to.device().index());
    machine.enqueue(stream,
                    {"copy to the device", {}, {place.range()}, [place, kept = from.detach().clone()] {
                       place.for_streams().copy_(kept);
                     }});
    return;
  }
  const TensorPlace source(from);
  machine.enqueue(stream, {"copy to the device", {source.range()}, {place.range()}, [place, source] {
                             place.for_streams().copy_(source.for_streams());
                           }});
  if (!non_blocking) machine.synchronize_stream(stream);
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Machine& machine = Machine::get();
  const int stream = current_stream(from.device().index());
  const TensorPlace source(from);
  if (to.is_pinned()) {
    const TensorPlace place(to);
    machine.enqueue(stream, {"copy to the host", {source.range()}, {place.range()}, [place, source] {
                               place.for_streams().copy_(source.for_streams());
                             }});
    if (!non_blocking) machine.synchronize_stream(stream);
    return;
  }
  machine.enqueue(
      stream, {"copy to the host", {source.range()}, {}, [to, source] { to.copy_(source.for_streams()); }});
  machine.synchronize_stream(stream);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  const at::AutoDispatchBelowAutograd below_autograd;
  if (from.device().type() != kType) {
    copy_to_device(from, to, non_blocking);
  } else if (to.device().type() != kType) {
    copy_to_host(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    throw Error("a simulated device cannot copy to another; ranks exchange tensors through communicators");
  } else {
    const TensorPlace source(from);
    const TensorPlace place(to);
    Machine::get().enqueue(current_stream(to.device().index()),
                           {"copy", {source.range()}, {place.range()}, [place, source] {
                              place.for_streams().copy_(source.for_streams());
                            }});
  }
  return to;
}

at::Scalar read_number(const at::Tensor& self) {
  const at::Tensor number = at::empty({}, self.options().device(at::kCPU));
  copy_to_host(self, number, /*non_blocking=*/false);
  return number.item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  c10::impl::VirtualGuardImpl(kType).recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("_copy_from", &copy_from);
  library.impl("_local_scalar_dense", &read_number);
  library.impl("record_stream", &record_stream);
}

}  // namespace stepforge::sim
