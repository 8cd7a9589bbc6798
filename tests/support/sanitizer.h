// SPDX-License-Identifier: Apache-2.0
// Tests with large inputs use smaller ones under a sanitizer, which makes them twenty times slower.
#pragma once

namespace stepforge::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // g++
inline constexpr bool kSanitizer = true;
#elif defined(__has_feature)  // clang
inline constexpr bool kSanitizer = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitizer = false;
#endif

}  // namespace stepforge::testing
