// SPDX-License-Identifier: Apache-2.0
// A function with a stack of its own that can pause: a thread of a block in cuda_on_cpu.h. On x86-64 a switch saves six
// registers; swapcontext(), used elsewhere, makes two system calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace stepforge::cuda_on_cpu {

#if defined(__x86_64__)

/// Where a paused function goes on: its stack, on which its registers are.
struct Context {
  void* stack = nullptr;
};

#if defined(__clang__)
#define STEPFORGE_OPAQUE gnu::noinline
#else
#define STEPFORGE_OPAQUE gnu::noipa  // g++ would look inside to see which registers stay as they are
#endif

/// Pauses this function in `from` and goes on in `to`.
[[gnu::naked, STEPFORGE_OPAQUE]] inline void switch_context(Context* /*from*/, const Context* /*to*/) {
  asm("pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
      "movq %rsp, (%rdi)\n\t"
      "movq (%rsi), %rsp\n\t"
      "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\t"
      "ret");
}

inline void make_context(Context& context, std::byte* stack, std::size_t bytes, void (*run)()) {
  std::byte* const end = stack + bytes - (reinterpret_cast<std::uintptr_t>(stack) + bytes) % 16;
  auto* const top = reinterpret_cast<void**>(end) - 8;  // registers, then as after a call from nowhere
  for (int i = 0; i < 8; ++i) top[i] = nullptr;
  top[6] = reinterpret_cast<void*>(run);
  context.stack = static_cast<void*>(top);
}

#else

struct Context {
  ucontext_t state;
};

inline void switch_context(Context* from, const Context* to) {
  swapcontext(&from->state, &to->state);
}

inline void make_context(Context& context, std::byte* stack, std::size_t bytes, void (*run)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  makecontext(&context.state, run, 0);
}

#endif

class Fiber {
 public:
  /// Goes on with `run` in the first resume(). `run` must not return: it pauses for ever.
  void start(void (*run)()) { make_context(own_, stack_.get(), kStackBytes, run); }

  /// Runs the function until it pauses.
  void resume() { switch_context(&caller_, &own_); }

  /// Of the function itself.
  void pause() { switch_context(&own_, &caller_); }

 private:
  static constexpr std::size_t kStackBytes = std::size_t{64} * 1024;

  std::unique_ptr<std::byte[]> stack_ = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  Context own_ = {};
  Context caller_ = {};
};

}  // namespace stepforge::cuda_on_cpu
