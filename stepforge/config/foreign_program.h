// SPDX-License-Identifier: Apache-2.0
// Settings in files that are programs: assignments of Python, arguments of a shell script.
#pragma once

#include <string>
#include <string_view>

#include "stepforge/config/value.h"

namespace stepforge {

/// Lines `name = value` of numbers and their products, texts, True, False and None, comments and imports. Throws FormatError
/// naming `name` and the line of anything else, with the remedy.
ConfigValue parse_python_assignments(std::string_view text, const std::string& name);

/// The arguments `--key value` of a script. Variables that the script assigns are replaced: NAME=value,
/// NAME=${NAME:-value} and products of integers. A key without a value is true. Throws FormatError naming `name` if there
/// is none.
ConfigValue parse_shell_arguments(std::string_view text, const std::string& name);

}  // namespace stepforge
