// SPDX-License-Identifier: Apache-2.0
// Tests of large inputs take smaller ones under a sanitizer, where they are twenty times slower.
#pragma once

namespace stepforge::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitizer = true;
#else
inline constexpr bool kSanitizer = false;
#endif

}  // namespace stepforge::testing
