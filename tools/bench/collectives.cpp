// SPDX-License-Identifier: Apache-2.0
// Times the collectives of one engine: one rank, started by tools/bench/collectives.py. Rank 0 prints a line of JSON
// for each collective and size.
//
//   bench_collectives gloo|shared_memory
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "stepforge/engines/world.h"

namespace stepforge {
namespace {

constexpr int kWarmup = 2;
constexpr int kCalls = 7;

/// The median of several calls that all ranks begin together.
double milliseconds(Communicator& ranks, const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = 0; i < kWarmup + kCalls; ++i) {
    ranks.barrier();
    const auto begin = std::chrono::steady_clock::now();
    call();
    ranks.barrier();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin() + kWarmup, times.end());
  return times.at(kWarmup + kCalls / 2);
}

void measure(World& world) {
  const auto ranks = world.group("bench", [&] {
    std::vector<int> all(static_cast<std::size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }());
  for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{32} << 20}) {
    const std::size_t share = bytes / static_cast<std::size_t>(world.size());
    std::vector<std::byte> whole(bytes);
    std::vector<std::byte> part(share);
    const auto print = [&](const char* name, const std::function<void()>& call) {
      const double time = milliseconds(*ranks, call);
      if (world.rank() == 0)
        std::printf("{\"collective\": \"%s\", \"bytes\": %zu, \"ms\": %.4f}\n", name, bytes, time);
    };
    print("all_reduce", [&] { ranks->all_reduce(whole, DType::f32); });
    print("reduce_scatter", [&] { ranks->reduce_scatter(whole, part, DType::f32); });
    print("all_gather", [&] { ranks->all_gather(part, whole); });
  }
}

}  // namespace
}  // namespace stepforge

int main(int argc, char** argv) {
  using namespace stepforge;
  if (argc != 2) {
    std::fprintf(stderr, "bench_collectives gloo|shared_memory\n");
    return 2;
  }
  try {
    CommConfig comm;
    comm.backend = std::strcmp(argv[1], "gloo") == 0 ? CommBackend::gloo : CommBackend::shared_memory;
    measure(*make_world(discover_ranks(process_environment()), comm));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "error: %s\n", failure.what());
    return 1;
  }
  return 0;
}
