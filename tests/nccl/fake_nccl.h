// SPDX-License-Identifier: Apache-2.0
// The functions of NCCL that stepforge/cuda/nccl calls, on the host, between ranks that are threads. A group of calls is work of a stream,
// which ends when all its messages have been taken; nothing is buffered. Half of the groups are accepted late, as NCCL does it with
// communicators that do not block. Different calls of two ranks are a fault.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <nccl.h>

namespace stepforge::testing {

/// What goes wrong in a group of calls of a member.
enum class Trouble {
  refused,       ///< ncclGroupEnd() returns ncclSystemError
  remote_error,  ///< it never ends, and ncclCommGetAsyncError() gives ncclRemoteError
  corrupt        ///< what arrives is wrong
};

/// Thread-safe.
class FakeNccl {
 public:
  static FakeNccl& get();

  /// For the group of calls that follows the next `groups` ones.
  void plan(int member, Trouble trouble, int groups = 0);
  std::optional<Trouble> take_trouble(int member);
  /// This member's part in making a communicator waits for ever.
  void set_missing(std::optional<int> member);
  bool is_missing(int member);

  struct Counts {
    int groups = 0;  ///< of calls
    int aborted = 0;
    int destroyed = 0;
  };
  Counts counts();
  void count(int Counts::* what);
  void reset();

  // Communicators that exist.
  void add(ncclComm_t comm);
  /// Whether it was there; else a fault.
  bool remove(ncclComm_t comm);
  bool is_alive(ncclComm_t comm);
  int alive();

 private:
  std::mutex mutex_;
  std::map<int, std::pair<Trouble, int>> troubles_;  ///< and how many groups come before
  std::optional<int> missing_;
  std::set<ncclComm_t> alive_;
  Counts counts_;
};

}  // namespace stepforge::testing
