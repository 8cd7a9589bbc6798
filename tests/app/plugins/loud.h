// SPDX-License-Identifier: Apache-2.0
// Code that runs as soon as a library is loaded: it writes the file that LOUD names.
#pragma once

#include <cstdlib>
#include <fstream>

namespace {

struct Loud {
  Loud() {
    if (const char* file = std::getenv("LOUD")) std::ofstream(file) << "loaded\n";
  }
};
const Loud loud;

}  // namespace
