// SPDX-License-Identifier: Apache-2.0
// The kinds of collectives, their names and the description of one call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stepforge/base/dtype.h"

namespace stepforge {

enum class CollectiveKind : uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  barrier,
  all_to_all,
  // Paired calls, which are not compared over the group.
  send,
  receive,
  send_receive
};
/// The last kind that all ranks of a group call together.
inline constexpr CollectiveKind kLastGroupKind = CollectiveKind::all_to_all;

/// Whether the call concerns single members only: send, receive or send_receive.
constexpr bool is_paired(CollectiveKind kind) {
  return kind > kLastGroupKind;
}

/// "all_gather"
std::string_view collective_name(CollectiveKind kind);

/// `unit` of calls that move no unit's bytes.
inline constexpr int kNoUnit = -1;

/// One call; unless it is paired, all ranks of the group must make the same.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::barrier;
  /// The size of one rank's part in an all-gather; what is sent and received in a send_receive; 0 in an all-to-all,
  /// whose sizes differ between ranks; otherwise the size of the whole.
  uint64_t bytes = 0;
  DType dtype = DType::u8;  ///< element type of a sum; u8 for calls without a sum
  int root = 0;             ///< the other member of a paired call, the receiving one of a send_receive; of a
                            ///< broadcast, its root: an index in the group
  int unit = kNoUnit;       ///< number of the model's unit whose bytes move
  int from = 0;             ///< the member from which a send_receive receives

  bool operator==(const CollectiveCall&) const = default;
};

/// "reduce_scatter of 64 bytes fp32", "all_gather of 1024 bytes for unit 3"
std::string collective_text(const CollectiveCall& call);

}  // namespace stepforge
