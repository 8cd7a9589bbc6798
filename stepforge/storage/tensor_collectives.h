// SPDX-License-Identifier: Apache-2.0
// The exchanges of layers whose matrices are divided over ranks, as collectives of the tensor group.
#pragma once

#include "stepforge/base/dtype.h"
#include "stepforge/kernels/divided.h"
#include "stepforge/storage/group_communicators.h"

namespace stepforge {

/// The dtype in which the tensor is summed over ranks. Throws Error if tensors of its type cannot be summed.
DType summed_type(const at::Tensor& tensor);

/// Over the tensor group of `groups`, on the compute lane; empty functions if it has one rank. The functions
/// throw PeerError. `groups` must outlive them. `parallel` has the rank and degree of that group.
TensorExchange tensor_exchange(const GroupCommunicators& groups, const TensorParallel& parallel);

}  // namespace stepforge
