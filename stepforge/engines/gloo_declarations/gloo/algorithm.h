// SPDX-License-Identifier: Apache-2.0
// Empty: c10d includes this header of Gloo but uses nothing from it. See README.md of gloo_declarations.
#pragma once
