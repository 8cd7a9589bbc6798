// SPDX-License-Identifier: Apache-2.0
// What this process tells the agent that started it about its failure.
#pragma once

#include <string>

namespace stepforge {

/// Writes the message where torchrun looks for that of its first failed process: the file that
/// TORCHELASTIC_ERROR_FILE names, as JSON. Does nothing without the variable.
void write_error_file(const std::string& message);

}  // namespace stepforge
