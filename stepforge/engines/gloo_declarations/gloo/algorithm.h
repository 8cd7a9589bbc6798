// SPDX-License-Identifier: Apache-2.0
// Nothing in it is used; see README.md of gloo_declarations.
#pragma once
