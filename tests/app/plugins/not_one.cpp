// SPDX-License-Identifier: Apache-2.0
// A library that is not a plug-in.
#include "tests/app/plugins/loud.h"
