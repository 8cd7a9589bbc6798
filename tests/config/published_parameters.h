// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace stepforge::testing {

/// Of each preset the number of parameters of the published weights.
inline const std::map<std::string, int64_t> kPublishedParameters{
    {"llama2-7b", 6738415616},         {"llama2-13b", 13015864320},        {"llama2-70b", 68976648192},
    {"llama3-8b", 8030261248},         {"llama3-70b", 70553706496},        {"llama3.1-8b", 8030261248},
    {"llama3.1-70b", 70553706496},     {"llama3.3-70b", 70553706496},      {"llama3.1-405b", 405853388800},
    {"llama3-405b", 405853388800},     {"llama3.2-1b", 1235814400},        {"llama3.2-3b", 3212749824},
    {"qwen3-0.6b", 596049920},         {"qwen3-1.7b", 1720574976},         {"qwen3-4b", 4022468096},
    {"qwen3-8b", 8190735360},          {"qwen3-14b", 14768307200},         {"qwen3-32b", 32762123264},
    {"qwen2.5-0.5b", 494032768},       {"qwen2.5-7b", 7615616512},         {"mistral-7b-v0.1", 7241732096},
    {"olmo2-7b", 7298617344},          {"gemma2-2b", 2614341888},          {"gemma2-9b", 9241705984},
    {"gemma3-1b", 999885952},          {"gemma3-4b", 3880263168},          {"qwen3-30b-a3b", 30532122624},
    {"mixtral-8x7b", 46702792704},     {"deepseek-v2-lite", 15706484224},  {"deepseek-v3", 671026419200},
    {"qwen3-235b-a22b", 235093634560}, {"qwen1.5-moe-a2.7b", 14315784192}, {"mixtral-8x22b", 140620634112},
    {"deepseek-v2", 235741434880},     {"gpt-oss-20b", 20914757184},       {"gpt-oss-120b", 116829156672}};

}  // namespace stepforge::testing
