// SPDX-License-Identifier: Apache-2.0
// Advice for paths that are names of the Hugging Face Hub or folders of its cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace stepforge {

enum class HubKind : uint8_t { model, dataset };

/// The remedy for a path that does not exist but looks like a name of the Hub ("Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B", an
/// address of huggingface.co), or is a cache folder with all revisions ("models--Qwen--Qwen3-0.6B"); "" for other paths.
/// The text is a clause without a full stop.
std::string hub_advice(const std::filesystem::path& path, HubKind kind);

}  // namespace stepforge
