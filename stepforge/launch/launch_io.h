// What a launcher hears from the system and shows on its terminal.
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
  /// What was blocked before.
  const sigset_t& before() const { return before_; }
  /// The next signal that came; 0 if there is none.
  int next() const;

 private:
  int descriptor_ = -1;
  sigset_t before_{};
};

/// Passes output on: as it is from one rank, in whole lines with their rank in front from several.
class Terminal {
 public:
  explicit Terminal(std::set<int> shown) : shown_(std::move(shown)) {}

  void show(int rank, const ChildOutput& output);
  /// Shows lines that have no end yet.
  void finish();

 private:
  static void flush(int rank, int target, std::string& line);

  std::set<int> shown_;
  std::map<std::pair<int, int>, std::string> lines_;
};

}  // namespace stepforge
