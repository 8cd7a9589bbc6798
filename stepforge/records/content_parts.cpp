// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/content_parts.h"

#include <string>
#include <string_view>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"

namespace stepforge {

bool writes_text_content(const ChatTemplate& chat_template) {
  constexpr std::string_view kText = "stand-in";
  Json message = Json::object();
  message["role"] = "user";
  message["content"] = kText;
  try {
    return chat_template.render(Json::array({message})).text.find(kText) != std::string::npos;
  } catch (const Error&) {
    return true;  // it may want a longer conversation; texts are what templates read
  }
}

void join_parts(Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto content = messages[i].find("content");
    if (content == messages[i].end() || !content->is_array()) continue;
    std::string text;
    for (size_t k = 0; k < content->size(); ++k) {
      const Json& part = (*content)[k];
      const Json& said = part.is_object() && part.contains("text") ? part["text"] : part;
      if (!said.is_string())
        throw FormatError(format("messages[{}].content[{}] is {}: only parts of type \"text\" are read", i, k,
                                 json_excerpt(part)));
      text += said.get_ref<const std::string&>();
    }
    *content = text;
  }
}

}  // namespace stepforge
