// SPDX-License-Identifier: Apache-2.0
// How a launcher learns that a job of several hosts has ended elsewhere, while a rank of its own host hangs.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "stepforge/launch/tcp_socket.h"

namespace stepforge {

/// Asks rank 0's store, in a thread and over one connection, whether it is still there. This opens no port, and
/// answers count only after the store has confirmed that it belongs to this job.
///
/// After that, the job has ended without this launcher if the store closes the connection or is silent for too long.
/// Ranks treat both as a failure of the job too, silence after 20 s. If all ranks end without a failure, the store says
/// so, and the watch is over.
class StoreWatch {
 public:
  struct Options {
    TcpAddress store;
    std::string run_id;          ///< of the ranks (rank_environment.h)
    double ask_seconds = 2;      ///< between two questions
    double silent_seconds = 60;  ///< without an answer: the job has ended
  };

  /// Throws Error if the system has no descriptors left.
  explicit StoreWatch(Options options);
  ~StoreWatch();
  StoreWatch(const StoreWatch&) = delete;
  StoreWatch& operator=(const StoreWatch&) = delete;

  /// Becomes readable once the job has ended elsewhere.
  int descriptor() const { return ended_.number(); }
  /// How that was noticed, "rank 0's store at node-0:29400 is closed"; "" if it has not ended.
  std::string reason() const;

 private:
  /// `yes`: the key exists; `ping`: the store is there; `stopped`: this watch is to end.
  enum class Answer : uint8_t { yes, ping, silent, closed, stopped };

  void watch();
  /// Waits `seconds`; false if the watch is to stop.
  bool pause(double seconds) const;
  Answer wait_for_key(int socket, const std::string& key) const;
  Answer next_answer(int socket) const;
  void report_end(const std::string& how);

  Options options_;
  Descriptor ended_;
  Descriptor stop_;
  mutable std::mutex mutex_;
  std::string reason_;  ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace stepforge
