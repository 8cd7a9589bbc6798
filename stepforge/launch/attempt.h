// SPDX-License-Identifier: Apache-2.0
// One attempt of a launcher: all ranks of this host, from their start to the end of the last one.
#pragma once

#include <chrono>
#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <poll.h>

#include "stepforge/launch/child_process.h"
#include "stepforge/launch/launch_io.h"
#include "stepforge/launch/launcher.h"
#include "stepforge/launch/tcp_socket.h"

namespace stepforge {

struct AttemptOptions {
  const LaunchOptions& launch;
  std::string launch_id;
  TcpAddress rendezvous;    ///< where rank 0's store is
  int store_listener = -1;  ///< for rank 0
  int restart = 0;          ///< number of attempts before this one

  int rank_of(int local_rank) const { return launch.node * launch.processes + local_rank; }
  int world_size() const { return launch.nodes * launch.processes; }
};

/// How an attempt ended.
struct AttemptOutcome {
  int exit_code = 0;  ///< of the rank that is taken for the cause, 0 if all succeeded
  bool interrupted = false;
  std::string report;  ///< of a failure, in lines
};

class Attempt {
 public:
  /// Starts the ranks; `shown` are those of the job whose output is passed on. Throws Error if one cannot be
  /// started.
  Attempt(const AttemptOptions& options, const Signals& signals, const std::set<int>& shown);

  /// Passes on output and signals until all ranks have ended.
  AttemptOutcome run();

 private:
  using Clock = std::chrono::steady_clock;

  bool is_any_running() const;
  void wait_for_events();
  void take_signals();
  void send_to_all(int number);
  bool show_output(int local_rank);
  void reap();
  void hasten(int number, double seconds);
  void end_late_ranks();
  const ChildProcess& cause() const;
  std::string report_of(const ChildProcess& failed) const;

  const AttemptOptions& options_;
  const Signals& signals_;
  std::set<int> shown_;
  Terminal terminal_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  std::vector<pollfd> polled_;
  std::vector<const ChildProcess*> failed_;  ///< in the order in which their ends were noticed
  int sent_ = 0;                             ///< interrupts that the ranks have been sent
  bool interrupted_ = false;
  int next_signal_ = 0;  ///< for ranks that are late, at signal_at_; 0: they have time
  Clock::time_point signal_at_ = Clock::time_point::max();
};

}  // namespace stepforge
