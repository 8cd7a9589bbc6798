// SPDX-License-Identifier: Apache-2.0
// Safetensors files as an attacker or a broken writer makes them: the classic faults of published loaders.
#pragma once

#include <string>
#include <vector>

namespace stepforge::testing {

struct HostileFile {
  std::string name;
  std::string bytes;
  std::string message;  // a part of the refusal: the byte, the field, the fault
};

std::vector<HostileFile> hostile_files();

}  // namespace stepforge::testing
