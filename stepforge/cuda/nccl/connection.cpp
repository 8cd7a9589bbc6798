// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/nccl/connection.h"

#include <chrono>
#include <thread>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/communicator.h"

namespace stepforge::cuda_nccl {

namespace {

/// Spins at first: NCCL accepts most calls within microseconds.
void pause(int polls) {
  constexpr int kSpins = 200;
  if (polls < kSpins) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace

void check_nccl(ncclResult_t result, std::string_view operation, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* const detail = ncclGetLastError(comm);
  const std::string text = format("NCCL: {}: {}", operation, ncclGetErrorString(result));
  throw Error(detail == nullptr || *detail == '\0' ? text : format("{} ({})", text, detail));
}

NcclConnection::~NcclConnection() {
  abort("the communicator is destroyed");
}

ncclUniqueId NcclConnection::new_id() {
  ncclUniqueId id{};
  check_nccl(ncclGetUniqueId(&id), "create an id", nullptr);
  return id;
}

ncclComm_t NcclConnection::connected() const {
  if (!reason_.empty()) throw PeerError(reason_);
  if (comm_ == nullptr) throw Error("NCCL: the communicator is not connected");
  return comm_;
}

void NcclConnection::open(const ncclUniqueId& id, int size, int rank) {
  constexpr std::string_view operation = "create a communicator";
  {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) throw PeerError(reason_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check_nccl(ncclCommInitRankConfig(&comm_, size, id, rank, &config), operation, nullptr);
  }
  wait_until_accepted(operation);
}

void NcclConnection::issue(const std::function<void(ncclComm_t)>& post) {
  constexpr std::string_view operation = "send a group of calls";
  {
    const std::lock_guard lock(mutex_);
    ncclComm_t comm = connected();
    check_nccl(ncclGroupStart(), "begin a group of calls", comm);
    try {
      post(comm);
    } catch (...) {
      static_cast<void>(ncclGroupEnd());  // else every later call of this thread would belong to the group
      throw;
    }
    check_nccl(ncclGroupEnd(), operation, comm);
  }
  wait_until_accepted(operation);
}

bool NcclConnection::is_accepted(std::string_view operation) {
  const std::lock_guard lock(mutex_);
  ncclComm_t comm = connected();
  ncclResult_t state = ncclSuccess;
  check_nccl(ncclCommGetAsyncError(comm, &state), "ask for errors", comm);
  check_nccl(state, operation, comm);
  return state != ncclInProgress;
}

/// NCCL puts work into the stream when it has accepted the call, so what the caller enqueues next must wait for that. This waits for a
/// peer only where the two have not been connected before: see device_test.h.
void NcclConnection::wait_until_accepted(std::string_view operation) {
  for (int polls = 0; !is_accepted(operation); ++polls) pause(polls);
}

void NcclConnection::check() {
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr && reason_.empty()) return;
  }
  static_cast<void>(is_accepted("communicate"));
}

void NcclConnection::close(const std::function<void()>& poll) {
  constexpr std::string_view operation = "close a communicator";
  {
    const std::lock_guard lock(mutex_);
    ncclComm_t comm = connected();
    check_nccl(ncclCommFinalize(comm), operation, comm);
  }
  for (int polls = 0; !is_accepted(operation); ++polls) {
    poll();
    pause(polls);
  }
  const std::lock_guard lock(mutex_);
  check_nccl(ncclCommDestroy(std::exchange(comm_, nullptr)), operation, nullptr);
}

void NcclConnection::refuse(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (reason_.empty()) reason_ = reason;
}

void NcclConnection::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (reason_.empty()) reason_ = reason;
  if (comm_ != nullptr) static_cast<void>(ncclCommAbort(std::exchange(comm_, nullptr)));
}

}  // namespace stepforge::cuda_nccl
