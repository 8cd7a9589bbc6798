// SPDX-License-Identifier: Apache-2.0
// One attempt of a launcher: the ranks of this host, from their start until the last one has ended.
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
#include "stepforge/launch/store_watch.h"
#include "stepforge/launch/tcp_socket.h"

namespace stepforge {

struct AttemptOptions {
  const LaunchOptions& launch;
  std::string launch_id;
  TcpAddress rendezvous;    ///< of rank 0's store
  int store_listener = -1;  ///< the listening socket that rank 0 inherits; -1: none
  int restart = 0;          ///< number of earlier attempts

  int rank_of(int local_rank) const { return launch.node * launch.processes + local_rank; }
  int world_size() const { return launch.nodes * launch.processes; }
};

/// How an attempt ended.
struct AttemptOutcome {
  int exit_code = 0;  ///< of the rank that caused the failure; 0 if all succeeded
  bool interrupted = false;
  std::string report;  ///< whole lines that describe the failure
  std::string notice;  ///< a line if ranks were ended because the job had ended elsewhere
};

class Attempt {
 public:
  /// Starts the ranks. `shown`: the ranks of the job whose output is shown. Throws Error if a rank cannot be
  /// started.
  Attempt(const AttemptOptions& options, const Signals& signals, const std::set<int>& shown);

  /// Forwards output and signals until all ranks have ended.
  AttemptOutcome run();

 private:
  using Clock = std::chrono::steady_clock;

  bool is_any_running() const;
  void wait_for_events();
  void forward_signals();
  void signal_all(int number);
  bool show_output(int local_rank);
  void reap();
  void signal_after(int number, double seconds);
  void signal_late_ranks();
  void notice_end_of_job();
  std::string ended_text() const;
  const ChildProcess& cause() const;
  std::string report_of(const ChildProcess& failed) const;

  const AttemptOptions& options_;
  const Signals& signals_;
  std::set<int> shown_;
  Terminal terminal_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  std::vector<pollfd> polled_;
  std::vector<const ChildProcess*> failed_;  ///< in the order in which they were reaped
  int sent_ = 0;                             ///< number of signals sent to the ranks
  bool interrupted_ = false;
  std::unique_ptr<StoreWatch> watch_;  ///< null on one host, and once it has told of the end
  std::string end_of_job_;             ///< how the watch noticed it
  std::string notice_;                 ///< of AttemptOutcome
  bool killed_ = false;                ///< whether ranks got SIGKILL from here
  int next_signal_ = 0;                ///< sent at signal_at_ to the ranks that still run; 0: none
  Clock::time_point signal_at_ = Clock::time_point::max();
};

}  // namespace stepforge
