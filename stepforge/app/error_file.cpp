// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/error_file.h"

#include <cstdlib>
#include <ctime>
#include <exception>
#include <iostream>

#include "stepforge/base/files.h"
#include "stepforge/base/json.h"

namespace stepforge {

void write_error_file(const std::string& message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  // torchrun takes the process with the smallest time for the one that failed first, and shows its call
  // stack, which for a Python program holds the message.
  const Json content = {
      {"message",
       {{"message", message},
        {"extraInfo", {{"py_callstack", message}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
  try {
    write_file_atomic(path, content.dump(-1, ' ', false, Json::error_handler_t::replace));
  } catch (const std::exception& failure) {
    std::cerr << "error: " << failure.what() << '\n';
  }
}

}  // namespace stepforge
