// SPDX-License-Identifier: Apache-2.0
// What bitsandbytes makes of weights and of factors (tools/oracle/make_nf4_golden.py).
#pragma once

#include <string>

#include <ATen/ops/empty.h>

#include "stepforge/tensorfile/tensor_folder.h"
#include "tests/support/paths.h"

namespace stepforge::testing {

/// A tensor of the golden file.
inline at::Tensor nf4_golden(const std::string& name, at::ScalarType type) {
  const TensorFolder file({source_dir() / "tests/golden/nf4.safetensors"});
  const at::Tensor values = at::empty(file.find(name)->shape, at::device(at::kCPU).dtype(type));
  file.read(name, whole_slice(file.find(name)->shape),
            {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

}  // namespace stepforge::testing
