// SPDX-License-Identifier: Apache-2.0
// Malformed safetensors files, as an attacker or a broken writer could make them.
#pragma once

#include <string>
#include <vector>

namespace stepforge::testing {

struct HostileFile {
  std::string name;
  std::string bytes;
  std::string message;  ///< part of the expected error: the byte, the field, the fault
};

std::vector<HostileFile> hostile_files();

}  // namespace stepforge::testing
