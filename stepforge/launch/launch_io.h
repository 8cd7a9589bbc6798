// SPDX-License-Identifier: Apache-2.0
// The signals that a launcher receives, and the terminal on which it shows the output of ranks.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include <signal.h>

#include "stepforge/launch/child_process.h"

namespace stepforge {

/// While it lives, SIGINT, SIGTERM and SIGCHLD of this thread are read from a descriptor.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int descriptor() const { return descriptor_; }
  /// The signals that were blocked before.
  const sigset_t& before() const { return before_; }
  /// The next pending signal; 0 if there is none.
  int next() const;

 private:
  int descriptor_ = -1;
  sigset_t before_{};
};

/// Passes output on: that of one rank unchanged, that of several in whole lines that begin with the rank.
class Terminal {
 public:
  /// `is_passed_on`: the rank shown may write to standard error as to the terminal where it ends.
  Terminal(std::set<int> shown, bool is_passed_on) : shown_(std::move(shown)), is_passed_on_(is_passed_on) {}

  bool is_passed_on() const { return is_passed_on_; }

  void show(int rank, const ChildOutput& output);
  /// Shows unfinished lines.
  void finish();

 private:
  static void flush(int rank, int target, std::string& line);

  std::set<int> shown_;
  bool is_passed_on_;
  std::map<std::pair<int, int>, std::string> lines_;
};

}  // namespace stepforge
