// SPDX-License-Identifier: Apache-2.0
// A library that is no plug-in.
#include "tests/app/plugins/loud.h"
