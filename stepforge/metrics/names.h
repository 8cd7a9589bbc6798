// SPDX-License-Identifier: Apache-2.0
// The names of logged values: torchtitan's TensorBoard tags where they exist, so that its dashboards and
// scripts can read our runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stepforge::metric {

inline constexpr std::string_view loss = "loss_metrics/global_avg_loss";
inline constexpr std::string_view max_loss = "loss_metrics/global_max_loss";
/// The mean loss of one data source over its labels since the last record.
inline std::string source_loss(std::string_view source) {
  return "loss_metrics/source/" + std::string(source);
}
/// The mean loss of one depth of multi-token prediction over its labels since the last record, without its weight in the
/// gradients.
inline std::string mtp_loss(int64_t depth) {
  return "loss_metrics/mtp_" + std::to_string(depth);
}
/// The losses of the experts' routers, means over layers and labels, without their weights in the gradients. Even loads
/// have balance 1.
inline constexpr std::string_view router_balance = "loss_metrics/router_balance";
inline constexpr std::string_view router_z = "loss_metrics/router_z";
/// Loads of experts since the last record, over tokens whose label counts: the mean over layers, or of one layer.
///   max_load, min_load  tokens of the expert with most, or fewest, divided by the mean
///   unused_experts      share of experts without a token
///   excess_load         share of the tokens beyond the mean of their expert, which a capacity of the mean would drop
///   load_entropy        entropy of the shares of tokens, divided by the largest possible: 1 is even
///   entropy             the same for the mean probabilities of the router
///   max_rank_load       tokens for the experts of the rank with most, divided by the mean; if experts are spread over ranks
///   correction_norm     L2 norm of the router's corrections, if it has some
inline std::string router(std::string_view figure) {
  return "router/" + std::string(figure);
}
/// Beside these figures a layer has "tokens", a list of the tokens of each expert.
inline std::string router(int64_t layer, std::string_view figure) {
  return "router/layers." + std::to_string(layer) + "/" + std::string(figure);
}
inline constexpr std::string_view grad_norm = "grad_norm";
/// The learning rate of this step's update.
inline constexpr std::string_view lr = "lr";
/// Tokens per second per device and of the whole job, without padding. Labels per second of the whole job.
inline constexpr std::string_view tps = "throughput(tps)";
inline constexpr std::string_view job_tps = "job_throughput(tps)";
inline constexpr std::string_view job_lps = "job_throughput(labels/s)";
/// In the rows since the last record: the share of padding, and the share of labels among the other tokens.
inline constexpr std::string_view padding_share = "data/padding(%)";
inline constexpr std::string_view label_share = "data/labels(%)";
inline constexpr std::string_view tflops = "tflops";
inline constexpr std::string_view mfu = "mfu(%)";
/// Seconds per step, and how many of them the step waited for data.
inline constexpr std::string_view end_to_end = "time_metrics/end_to_end(s)";
inline constexpr std::string_view data_loading = "time_metrics/data_loading(s)";
inline constexpr std::string_view data_loading_share = "time_metrics/data_loading(%)";
/// Peak tensor memory, and peak resident memory of the process.
inline constexpr std::string_view memory_active = "memory/max_active(GiB)";
inline constexpr std::string_view memory_resident = "memory/max_resident(GiB)";
/// Tokens and labels of all ranks since the beginning of the run, without padding.
inline constexpr std::string_view tokens_seen = "n_tokens_seen";
inline constexpr std::string_view labels_seen = "n_labels_seen";
/// Per step and axis of the mesh ("tp"): the size of its messages (GroupMeter), and how long compute waited.
inline std::string comm_bytes(std::string_view axis) {
  return "comm/" + std::string(axis) + "(GiB)";
}
inline std::string comm_wait(std::string_view axis) {
  return "comm/" + std::string(axis) + "_wait(s)";
}

inline constexpr std::string_view validation_loss = "validation_metrics/global_avg_loss";
inline constexpr std::string_view validation_perplexity = "validation_metrics/perplexity";
inline constexpr std::string_view validation_bits_per_byte = "validation_metrics/bits_per_byte";
/// The divergence from the teacher at distillation.temperature, the mean over labels since the last record.
inline constexpr std::string_view distillation_kl = "distillation/kl";
/// The figures of pairs of answers, with the names of TRL, means since the last record: the reward of the better answer less that of
/// the other, and the share of pairs in which it is above 0. There are more (train/preference_data.h).
inline constexpr std::string_view reward_margins = "rewards/margins";
inline constexpr std::string_view reward_accuracies = "rewards/accuracies";
/// Before their names in validation.
inline constexpr std::string_view validation_prefix = "validation_metrics/";
inline constexpr std::string_view validation_margins = "validation_metrics/rewards/margins";
inline constexpr std::string_view validation_accuracies = "validation_metrics/rewards/accuracies";
inline constexpr std::string_view validation_tps = "validation_throughput(tps)";

}  // namespace stepforge::metric
