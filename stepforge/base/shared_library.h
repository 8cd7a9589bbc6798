// SPDX-License-Identifier: Apache-2.0
// Reading a shared library (ELF) without loading it, so that none of its code runs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stepforge/base/files.h"

namespace stepforge {

/// The bytes of the section of this name; nullopt if the library has none. Sections over 4 KiB are ignored.
/// Throws FormatError if the file is not a shared library for this kind of processor, or is cut off or damaged so
/// that the system's loader might crash: if a segment, a section or a table for the loader is not inside the file, or a
/// relocation is not inside memory. Damaged code and data are not noticed.
std::optional<std::string> library_section(const FileReader& file, std::string_view name);

}  // namespace stepforge
