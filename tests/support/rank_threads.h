// SPDX-License-Identifier: Apache-2.0
// Runs a function as every rank of a world: as threads, or as forked processes.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <fstream>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/communicator.h"
#include "stepforge/comm/shared_memory.h"
#include "tests/support/temp_folder.h"

namespace stepforge::testing {

inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <typename T>
std::span<std::byte> writable_bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

/// The code of one rank; it returns a result.
using RankBody = std::function<std::string(World&)>;

/// The result of a rank's body, or "PeerError: ..." or "Error: ..." with the message of its exception.
inline std::string result_of(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const PeerError& error) {
    return std::string("PeerError: ") + error.what();
  } catch (const std::exception& error) {
    return std::string("Error: ") + error.what();
  }
}

/// Staging buffers so small that most messages need many rounds.
constexpr std::size_t kSmallStaging = 1024;

/// Runs the body of each rank in a thread; returns their results.
inline std::vector<std::string> run_rank_threads(int size, const std::function<std::string(int rank)>& body) {
  std::vector<std::string> results(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { results[static_cast<std::size_t>(rank)] = result_of([&] { return body(rank); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

/// Each world is destroyed by its rank's thread, after the body.
inline std::vector<std::string> run_worlds(std::vector<std::unique_ptr<World>> worlds, const RankBody& body) {
  return run_rank_threads(static_cast<int>(worlds.size()), [&](int rank) {
    const std::unique_ptr<World> world = std::move(worlds[static_cast<std::size_t>(rank)]);
    return body(*world);
  });
}

inline std::vector<std::string> run_threads(int size, const RankBody& body,
                                            CommDeadlines deadlines = {60, 60},
                                            std::size_t staging_bytes = kSmallStaging) {
  return run_worlds(thread_worlds(size, deadlines, staging_bytes), body);
}

/// Processes forked from this one, which return their results through files.
class RankProcesses {
 public:
  void start(const std::function<std::string()>& body) {
    const std::filesystem::path path = folder_ / std::to_string(processes_.size());
    const pid_t process = fork();
    if (process == 0) {
      const std::string result = result_of(body);
      std::ofstream(path, std::ios::binary) << result;
      _exit(0);
    }
    processes_.push_back(process);
  }
  pid_t process(std::size_t rank) const { return processes_[rank]; }

  /// Waits for all processes; those that run for more than two minutes are killed. The result of a process
  /// that does not exit with 0 is "status N".
  std::vector<std::string> results() {
    std::vector<std::string> texts;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      int status = 0;
      while (waitpid(processes_[i], &status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > deadline) kill(processes_[i], SIGKILL);
        usleep(1000);
      }
      texts.push_back(status == 0 ? read_file(folder_ / std::to_string(i)) : format("status {}", status));
    }
    return texts;
  }

 private:
  TempFolder folder_;
  std::vector<pid_t> processes_;
};

/// Lets ranks wait for each other without the code under test, also between processes.
class Marks {
 public:
  void set(const std::string& name) const { std::ofstream(folder_ / name) << name; }
  bool has(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  /// Throws after a minute.
  void wait_for(const std::string& name) const {
    for (int i = 0; i < 30000 && !has(name); ++i) usleep(2000);
    if (!has(name)) throw Error(format("the mark \"{}\" was not set within a minute", name));
  }

 private:
  TempFolder folder_;
};

/// A run id that no other test has.
inline std::string unique_run_id() {
  static int count = 0;
  return format("test-{}-{}", getpid(), count++);
}

inline std::vector<std::string> run_processes(int size, const RankBody& body,
                                              CommDeadlines deadlines = {60, 60},
                                              std::size_t staging_bytes = kSmallStaging) {
  const std::string run_id = unique_run_id();
  RankProcesses processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.start([&, rank] {
      const auto world = process_world(run_id, rank, size, deadlines, staging_bytes);
      return body(*world);
    });
  }
  return processes.results();
}

/// A way to run ranks: as threads or as processes, on some engine.
struct RankRunner {
  std::string name;
  std::function<std::vector<std::string>(int size, const RankBody& body, CommDeadlines deadlines)> start;
  bool may_end_early = false;  ///< a small message may end before its receiver comes

  std::vector<std::string> run(int size, const RankBody& body, CommDeadlines deadlines = {60, 60}) const {
    return start(size, body, deadlines);
  }
};

inline void PrintTo(const RankRunner& runner, std::ostream* out) {
  *out << runner.name;
}

inline RankRunner as_threads() {
  return {"Threads", [](int size, const RankBody& body, CommDeadlines deadlines) {
            return run_threads(size, body, deadlines);
          }};
}
inline RankRunner as_processes() {
  return {"Processes", [](int size, const RankBody& body, CommDeadlines deadlines) {
            return run_processes(size, body, deadlines);
          }};
}

}  // namespace stepforge::testing
