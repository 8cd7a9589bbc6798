// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/builtin_templates.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr std::string_view kChatml = R"jinja(
{%- if tools %}{{ raise_exception('the built-in template writes no tools: use the template of the model') }}{% endif %}
{%- for message in messages %}
{%- if message.tool_calls or message.role == 'tool' %}{{ raise_exception('the built-in template writes no calls of tools: use the template of the model') }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})jinja";

constexpr std::string_view kQwen = R"jinja(
{%- if tools %}{{ raise_exception('the built-in template writes no tools: use the template of the model') }}{% endif %}
{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls or message.role == 'tool' %}{{ raise_exception('the built-in template writes no calls of tools: use the template of the model') }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})jinja";

constexpr std::string_view kLlama3 = R"jinja(
{%- if tools %}{{ raise_exception('the built-in template writes no tools: use the template of the model') }}{% endif %}
{{- bos_token or '' }}
{%- for message in messages %}
{%- if message.tool_calls or message.role == 'tool' %}{{ raise_exception('the built-in template writes no calls of tools: use the template of the model') }}{% endif %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})jinja";

constexpr std::string_view kGemma = R"jinja(
{%- if tools %}{{ raise_exception('the built-in template writes no tools: use the template of the model') }}{% endif %}
{{- bos_token or '' }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
{%- if message.tool_calls or message.role == 'tool' %}{{ raise_exception('the built-in template writes no calls of tools: use the template of the model') }}{% endif %}
{%- if message.role == 'system' %}{% set ns.system = message.content | trim + '\n\n' %}
{%- else %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' + (ns.system if message.role == 'user' else '') + message.content | trim + '<end_of_turn>\n' }}
{%- if message.role == 'user' %}{% set ns.system = '' %}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %})jinja";

constexpr std::string_view kMistral = R"jinja(
{%- if tools %}{{ raise_exception('the built-in template writes no tools: use the template of the model') }}{% endif %}
{{- bos_token or '' }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
{%- if message.tool_calls or message.role == 'tool' %}{{ raise_exception('the built-in template writes no calls of tools: use the template of the model') }}{% endif %}
{%- if message.role == 'system' %}{% set ns.system = message.content + '\n\n' %}
{%- elif message.role == 'user' %}{{ '[INST] ' + ns.system + message.content + '[/INST]' }}{% set ns.system = '' %}
{%- else %}{{ ' ' + message.content | trim + eos_token }}
{%- endif %}
{%- endfor %})jinja";

constexpr std::string_view kDeepseek = R"jinja(
{%- if tools %}{{ raise_exception('the built-in template writes no tools: use the template of the model') }}{% endif %}
{{- bos_token or '' }}
{%- for message in messages %}
{%- if message.tool_calls or message.role == 'tool' %}{{ raise_exception('the built-in template writes no calls of tools: use the template of the model') }}{% endif %}
{%- if message.role == 'system' %}{{ message.content }}
{%- elif message.role == 'user' %}{{ '<｜User｜>' + message.content }}
{%- else %}{{ '<｜Assistant｜>' + message.content + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %})jinja";

constexpr std::string_view kAlpaca = R"jinja(
{%- if tools %}{{ raise_exception('the built-in template writes no tools: use the template of the model') }}{% endif %}
{{- bos_token or '' }}
{%- if messages[0].role != 'system' %}
{{- 'Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls or message.role == 'tool' %}{{ raise_exception('the built-in template writes no calls of tools: use the template of the model') }}{% endif %}
{%- if message.role == 'system' %}{{ message.content + '\n\n' }}
{%- elif message.role == 'user' %}{{ '### Instruction:\n' + message.content + '\n\n' }}
{%- else %}{{ '### Response:\n' + message.content + eos_token + '\n\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '### Response:\n' }}{% endif %})jinja";

bool is_one_token(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(std::string(text));
  return ids.size() == 1 && tokenizer.is_added(ids.front());
}

std::string names_of_templates() {
  std::vector<std::string> names;
  for (const BuiltinTemplate& known : builtin_templates()) names.emplace_back(known.name);
  return join(names, ", ");
}

}  // namespace

const std::vector<BuiltinTemplate>& builtin_templates() {
  static const std::vector<BuiltinTemplate> kTemplates = {
      {"chatml", kChatml, {"<|im_start|>", "<|im_end|>"}},
      {"llama3", kLlama3, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"gemma", kGemma, {"<start_of_turn>", "<end_of_turn>"}},
      {"mistral", kMistral, {}},
      {"qwen", kQwen, {"<|im_start|>", "<|im_end|>"}},
      {"deepseek", kDeepseek, {"<｜User｜>", "<｜Assistant｜>"}},
      {"alpaca", kAlpaca, {}}};
  return kTemplates;
}

const BuiltinTemplate* find_builtin_template(std::string_view name) {
  const auto found = std::ranges::find(builtin_templates(), name, &BuiltinTemplate::name);
  return found == builtin_templates().end() ? nullptr : &*found;
}

void require_template_tokens(std::string_view name, const ChatTemplate& loaded, const Tokenizer& tokenizer) {
  const BuiltinTemplate* known = find_builtin_template(name);
  if (known == nullptr || std::filesystem::exists(name)) return;
  for (const std::string_view token : known->tokens) {
    if (is_one_token(tokenizer, token)) continue;
    throw UsageError(
        format("data.chat_template = \"{}\": the tokenizer has no token {}, "
               "so a model would learn its letters; add it to the tokenizer (added_tokens.json), "
               "or choose a template whose tokens it has ({})",
               name, token, names_of_templates()));
  }
  const bool ends_with_eos = known->source.find("eos_token") != std::string_view::npos;
  if (!ends_with_eos || loaded.special_tokens().contains("eos_token")) return;
  throw UsageError(
      format("data.chat_template = \"{}\" ends answers with eos_token, which tokenizer_config.json does not "
             "name; add it there, or choose another template",
             name));
}

}  // namespace stepforge
