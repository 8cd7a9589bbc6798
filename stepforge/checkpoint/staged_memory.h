// SPDX-License-Identifier: Apache-2.0
// Host memory that large copies are made in.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>

namespace stepforge {

/// Memory of large pages, none of which exists before it is used. Throws std::bad_alloc.
std::shared_ptr<std::byte[]> map_memory(size_t bytes);

/// Makes the pages of `memory`, which no other thread may use meanwhile, until all exist or `stop` is requested;
/// changes no byte of it. Otherwise they are made, and cleared, by the first copy into them.
void make_pages(std::span<std::byte> memory, const std::stop_token& stop);

}  // namespace stepforge
