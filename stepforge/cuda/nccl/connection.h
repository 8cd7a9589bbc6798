// SPDX-License-Identifier: Apache-2.0
// A communicator of NCCL that any thread can abort.
//
// It does not block (ncclConfig_t::blocking = 0): a function of NCCL that would wait for a peer returns ncclInProgress, so that another
// thread can end the wait. Without it ncclCommAbort() would have to be called beside a function that uses the same communicator.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include <nccl.h>

namespace stepforge::cuda_nccl {

/// Throws Error: "NCCL: send: remote process exited or there was a network error (...)". `comm` may be null.
void check_nccl(ncclResult_t result, std::string_view operation, ncclComm_t comm);

/// Every function throws PeerError with the reason after refuse() or abort(), and Error if NCCL reports one.
class NcclConnection {
 public:
  NcclConnection() = default;
  /// Aborts it unless it is closed.
  ~NcclConnection();
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  static ncclUniqueId new_id();

  /// Connects member `rank` with the others, which do the same. On the current device.
  void open(const ncclUniqueId& id, int size, int rank);
  /// Calls post(comm), which gives NCCL calls, as one group. When it returns they are in their stream.
  void issue(const std::function<void(ncclComm_t)>& post);
  /// Throws if a call has failed that NCCL had accepted.
  void check();
  /// Waits until all ranks have received everything, and frees it. All ranks must do so. Calls `poll` meanwhile, which may throw.
  void close(const std::function<void()>& poll);
  // Any thread may call these. The first reason stays.

  /// Ends the waits of this class. What is in a stream goes on.
  void refuse(const std::string& reason);
  /// Ends also what is in a stream, whose results are then wrong.
  void abort(const std::string& reason);

 private:
  ncclComm_t connected() const;
  bool is_accepted(std::string_view operation);
  void wait_until_accepted(std::string_view operation);

  std::mutex mutex_;  ///< around every function of NCCL with comm_
  ncclComm_t comm_ = nullptr;
  std::string reason_;  ///< why it was refused or aborted
};

}  // namespace stepforge::cuda_nccl
