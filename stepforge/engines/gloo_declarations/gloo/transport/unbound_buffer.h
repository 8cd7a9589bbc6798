// SPDX-License-Identifier: Apache-2.0
// Declares what ProcessGroupGloo.hpp names; see README.md of gloo_declarations.
#pragma once

namespace gloo::transport {

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
