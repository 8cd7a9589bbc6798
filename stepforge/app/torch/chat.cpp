// SPDX-License-Identifier: Apache-2.0
// `stepforge chat`.

#include <algorithm>
#include <csignal>
#include <ctime>
#include <iostream>
#include <string>

#include "stepforge/app/torch/chat_session.h"
#include "stepforge/app/torch/commands.h"
#include "stepforge/app/torch/sampling_choice.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/kernels/cpu_allocator.h"

namespace stepforge {

namespace {

constexpr std::string_view kHelp =
    "/reset forgets the conversation, /system TEXT sets the system message, /exit or Ctrl-D ends, "
    "Ctrl-C stops an answer";

/// Holds back Ctrl-C while an answer is written. To be made before threads start: they inherit the blocked signal.
class HeldInterrupt {
 public:
  HeldInterrupt() { block(SIG_BLOCK); }

  /// Whether Ctrl-C has come since the last call.
  bool take() const {
    sigset_t signals = interrupt();
    const timespec now{};
    return sigtimedwait(&signals, nullptr, &now) == SIGINT;
  }
  /// Between answers Ctrl-C ends the program, as usual.
  void release() const { block(SIG_UNBLOCK); }
  void hold() const { block(SIG_BLOCK); }

 private:
  static sigset_t interrupt() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    return signals;
  }
  static void block(int how) {
    const sigset_t signals = interrupt();
    pthread_sigmask(how, &signals, nullptr);
  }
};

SamplingParams sampling_of(const ChatOptions& options, const Json& generation) {
  SamplingParams sampling;
  sampling.max_tokens = options.max_tokens;
  sampling.seed = options.seed;
  return choose_sampling(sampling, generation, {options.temperature, options.top_k, options.top_p});
}

/// Reads lines until the end of the input. On a terminal it shows a prompt.
class ChatLoop {
 public:
  ChatLoop(ChatSession& session, const HeldInterrupt& interrupt, bool terminal)
      : session_(session), interrupt_(interrupt), terminal_(terminal) {}

  void run() {
    if (terminal_) std::cout << kHelp << "\n";
    while (const auto line = next_line()) {
      if (*line == "/exit") return;
      if (!line->empty()) take(*line);
    }
  }

 private:
  std::optional<std::string> next_line() const {
    if (terminal_) std::cout << "\n> " << std::flush;
    std::string line;
    interrupt_.release();
    const bool read = static_cast<bool>(std::getline(std::cin, line));
    interrupt_.hold();
    if (read) return line;
    if (terminal_) std::cout << std::endl;
    return std::nullopt;
  }

  void take(const std::string& line) {
    if (line == "/reset") return session_.reset();
    if (line == "/system") return session_.set_system("");
    if (line.starts_with("/system ")) return session_.set_system(line.substr(8));
    if (line.starts_with('/')) {
      std::cout << format("{} is not a command; {}\n", line, kHelp) << std::flush;
      return;
    }
    try {
      session_.answer(
          line, [](std::string_view piece) { std::cout << piece << std::flush; },
          [this] { return interrupt_.take(); });
      std::cout << std::endl;
    } catch (const Error& fault) {  // the conversation goes on without this message
      std::cout << std::flush;
      std::cerr << printable(fault.what()) << std::endl;
    }
  }

  ChatSession& session_;
  const HeldInterrupt& interrupt_;
  bool terminal_;
};

}  // namespace

int run(const ChatOptions& options, const CommandContext& context) {
  const HeldInterrupt interrupt;
  install_cpu_allocator();
  const ChargeMemory rank(make_rank_memory());
  const LoadedModel model = load_model(options.model,
                                       {.compute = options.compute,
                                        .device = options.device,
                                        .adapters = options.adapters,
                                        .writes_text = true},
                                       context);
  const ChatTemplate chat_template = ChatTemplate::load(model.known.tokenizer_folder, options.chat_template);
  ChatSession session(model, chat_template, options.compute,
                      {.system = options.system,
                       .context = options.context,
                       .sampling = sampling_of(options, model.generation)});
  ChatLoop(session, interrupt, stdin_is_terminal()).run();
  return 0;
}

}  // namespace stepforge
