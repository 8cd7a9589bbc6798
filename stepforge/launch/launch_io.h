// SPDX-License-Identifier: Apache-2.0
// The signals that a launcher receives, and the output of ranks that it shows.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include <signal.h>

#include "stepforge/launch/child_process.h"

namespace stepforge {

/// Blocks end_signals() (base/interrupt.h) and SIGCHLD in this thread during its lifetime; they are read from a descriptor
/// instead. Ignores SIGPIPE meanwhile: ranks go on if the reader of their output goes away (launch | head).
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int descriptor() const { return descriptor_; }
  /// The signal mask before.
  const sigset_t& before() const { return before_; }
  /// The next pending signal; 0 if there is none.
  int next() const;

 private:
  int descriptor_ = -1;
  sigset_t before_{};
  struct sigaction pipe_before_{};
};

/// Shows the output of ranks: of a single rank unchanged, of several in whole lines with the rank as a
/// prefix.
class Terminal {
 public:
  /// `shares_terminal`: the only shown rank may treat standard error as a terminal.
  Terminal(std::set<int> shown, bool shares_terminal)
      : shown_(std::move(shown)), shares_terminal_(shares_terminal) {}

  bool shares_terminal() const { return shares_terminal_; }

  void show(int rank, const ChildOutput& output);
  /// Shows unfinished lines.
  void finish();

 private:
  static void flush(int rank, int target, std::string& line);

  std::set<int> shown_;
  bool shares_terminal_;
  std::map<std::pair<int, int>, std::string> lines_;
};

}  // namespace stepforge
