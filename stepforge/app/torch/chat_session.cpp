// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/chat_session.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/text/text_ends.h"

namespace stepforge {

namespace {

/// The end tokens of the model, and those with which the template ends an answer.
std::vector<int32_t> ends_of(const LoadedModel& model, const Tokenizer& tokenizer,
                             const ChatTemplate& chat_template) {
  std::vector<int32_t> ids = end_tokens(tokenizer, model.generation);
  for (const int32_t id : answer_ends(chat_template, tokenizer)) ids.push_back(id);
  return ids;
}

Json message(const char* role, const std::string& content) {
  Json made = Json::object();
  made["role"] = role;
  made["content"] = content;
  return made;
}

int64_t context_of(const LoadedModel& model, const ChatSessionOptions& options) {
  return std::min(options.context, model.config().model.max_position);
}

}  // namespace

ChatSession::ChatSession(const LoadedModel& model, const ChatTemplate& chat_template, DType compute,
                         ChatSessionOptions options)
    : tokenizer_(model.known.require_tokenizer()),
      template_(chat_template),
      options_(std::move(options)),
      forward_(model.forward(context_of(model, options_))),
      generator_(model.spec, plan_generation(compute, model.spec, context_of(model, options_)), forward_,
                 *model.store, compute, context_of(model, options_)),
      ends_(ends_of(model, *tokenizer_, template_)) {
  options_.sampling.known_tokens = tokenizer_->vocab_size();
  reset();
}

void ChatSession::reset() {
  messages_ = Json::array();
  if (!options_.system.empty()) messages_.push_back(message("system", options_.system));
}

void ChatSession::set_system(const std::string& text) {
  options_.system = text;
  reset();
}

std::vector<int32_t> ChatSession::prompt() const {
  return tokenizer_->encode(template_.render(messages_, {.add_generation_prompt = true}).text);
}

std::string ChatSession::answer(const std::string& user, const std::function<void(std::string_view)>& print,
                                const std::function<bool()>& stopped) {
  const Json before = messages_;
  messages_.push_back(message("user", user));
  std::string text;
  try {
    StreamDecoder decoder(*tokenizer_);
    const auto show = [&](const std::string& piece) {
      text += piece;
      if (!piece.empty()) print(piece);
    };
    generator_.generate(prompt(), options_.sampling, ends_, [&](int32_t token) {
      show(decoder.push(token));
      return !stopped();
    });
    show(decoder.finish());
  } catch (...) {
    messages_ = before;
    throw;
  }
  messages_.push_back(message("assistant", text));
  return text;
}

}  // namespace stepforge
