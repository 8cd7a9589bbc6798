// SPDX-License-Identifier: Apache-2.0
// Declares what ProcessGroupGloo.hpp names; see README.md of gloo_declarations.
#pragma once

#include <chrono>
#include <memory>

#include <gloo/transport/unbound_buffer.h>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
