// SPDX-License-Identifier: Apache-2.0
// Measures what this processor can do at most, with loops of our own: `bench_peak [THREADS]`. Prints a line of JSON:
//
//   {"threads": 2, "fp32": {"kind": ..., "one": GFLOP/s, "all": GFLOP/s}, "bf16": ..., "copy": {"one": GB/s, "all": GB/s}}
//
// fp32: multiply-adds on registers alone, in the widest vectors. bf16: products of pairs or of tiles, the fastest kind that
// works; null if the processor has none. copy: bytes read and written by memcpy between arrays that no cache holds. One thread,
// then THREADS that begin together (default: all cores); the best of half a second's rounds.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr double kSeconds = 0.5;  // of rounds
constexpr int kRepeats = 1 << 20;
constexpr size_t kCopiedBytes = size_t{1} << 29;  // of each array

/// What one thread does in a round, and how much that is.
struct Loop {
  std::string kind;
  double amount = 0;  ///< operations or bytes
  std::function<void(int thread)> body;
};

template <int width>
using Floats __attribute__((vector_size(width * sizeof(float)))) = float;

/// Where sums begin and end, so that the compiler neither merges nor drops them.
volatile float kept = 0.5F;
constexpr int kSums = 12;  // enough to fill two units with a latency of five cycles

/// Inlined into functions for one instruction set each.
template <int width>
__attribute__((always_inline)) inline void multiply_add() {
  Floats<width> factor = {};
  factor += 0.999F;
  Floats<width> sums[kSums] = {};
  for (auto& sum : sums) sum += kept;
  for (int i = 0; i < kRepeats; ++i) {
#pragma GCC unroll 16
    for (auto& sum : sums) sum = sum * factor + factor;
  }
  Floats<width> total = {};
  for (const auto& sum : sums) total += sum;
  kept = total[0];
}
constexpr double kMultiplyAddsPerLane = double{kSums} * kRepeats;

void multiply_add_plain() {
  multiply_add<4>();
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void multiply_add_avx2() {
  multiply_add<8>();
}

__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma,prefer-vector-width=512"))) void
multiply_add_avx512() {
  multiply_add<16>();
}

/// A sum's element gets the products of two pairs.
__attribute__((target("avx512f,avx512bf16"))) void pairs_avx512() {
  const __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5F), _mm512_set1_ps(0.5F));
  __m512 sums[kSums] = {};
  for (__m512& sum : sums) sum = _mm512_set1_ps(kept);
  for (int i = 0; i < kRepeats; ++i) {
#pragma GCC unroll 16
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, factor, factor);
  }
  __m512 total = {};
  for (const __m512& sum : sums) total = _mm512_add_ps(total, sum);
  kept = total[0];
}

constexpr int kTileRepeats = kRepeats / 8;

/// Asks the kernel for the tiles' state.
bool tiles_allowed() {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// Four sums of 16 x 16, each of products of 16 x 32 by 32 x 16.
__attribute__((target("amx-tile,amx-bf16"))) void tiles_amx() {
  // Static: the compiler does not see that all of it is read.
  static const struct {
    unsigned char palette = 1;
    unsigned char start = 0;
    unsigned char reserved[14] = {};
    unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shapes;
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int i = 0; i < kTileRepeats; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}
#endif

Loop fp32_loop() {
  const auto loop = [](const char* kind, int width, void (*body)()) {
    return Loop{kind, 2.0 * width * kMultiplyAddsPerLane, [body](int) { body(); }};
  };
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
    return loop("AVX-512", 16, multiply_add_avx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return loop("AVX2", 8, multiply_add_avx2);
#endif
  return loop("plain", 4, multiply_add_plain);
}

std::vector<Loop> bf16_loops() {
  std::vector<Loop> loops;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16"))
    loops.push_back({"AVX-512", 2.0 * 32 * kMultiplyAddsPerLane, [](int) { pairs_avx512(); }});
  if (__builtin_cpu_supports("amx-bf16") && tiles_allowed())
    loops.push_back({"AMX", 4.0 * 2 * 16 * 16 * 32 * kTileRepeats, [](int) { tiles_amx(); }});
#endif
  return loops;
}

/// 1e9 per second, of all threads together.
double rate(const Loop& loop, int threads) {
  double best = 0;
  for (double spent = 0; spent < kSeconds;) {
    std::chrono::steady_clock::time_point begin;
    std::barrier start(threads, [&]() noexcept { begin = std::chrono::steady_clock::now(); });
    {
      std::vector<std::jthread> others;
      const auto work = [&](int thread) {
        start.arrive_and_wait();
        loop.body(thread);
      };
      for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
      work(0);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    spent += seconds;
    best = std::max(best, 1e-9 * loop.amount * threads / seconds);
  }
  return best;
}

std::string rates(const Loop& loop, int threads) {
  char text[160];
  std::snprintf(text, sizeof text, R"({"kind": "%s", "one": %.1f, "all": %.1f})", loop.kind.c_str(),
                rate(loop, 1), rate(loop, threads));
  return text;
}

/// Each thread copies its part of the arrays, so that the rate of one thread is that of a part too.
std::string copy_rates(int threads) {
  std::vector<char> from(kCopiedBytes, 1);
  std::vector<char> to(kCopiedBytes, 2);
  const size_t part = kCopiedBytes / static_cast<size_t>(threads);
  return rates({"memcpy", 2.0 * static_cast<double>(part),
                [&](int thread) {
                  const size_t begin = part * static_cast<size_t>(thread);
                  std::memcpy(to.data() + begin, from.data() + begin, part);
                }},
               threads);
}

/// Of the kind that is fastest with one thread.
std::string bf16_rates(int threads) {
  const std::vector<Loop> loops = bf16_loops();
  if (loops.empty()) return "null";
  const auto rate_of_one = [](const Loop& loop) { return rate(loop, 1); };
  return rates(*std::ranges::max_element(loops, {}, rate_of_one), threads);
}

}  // namespace

int main(int argc, char** argv) {
  const int given = argc > 1 ? std::atoi(argv[1]) : 0;
  const int threads = given > 0 ? given : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::printf("{\"threads\": %d, \"fp32\": %s, \"bf16\": %s, \"copy\": %s}\n", threads,
              rates(fp32_loop(), threads).c_str(), bf16_rates(threads).c_str(), copy_rates(threads).c_str());
}
