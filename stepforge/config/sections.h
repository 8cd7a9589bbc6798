// SPDX-License-Identifier: Apache-2.0
// The schema of each section of the configuration, one function per section.
#pragma once

#include "stepforge/config/config.h"
#include "stepforge/config/schema.h"

namespace stepforge {

SchemaOf<ModelConfig> model_section();
SchemaOf<AdapterConfig> adapter_section();
SchemaOf<PreferenceConfig> preference_section();
SchemaOf<DistillationConfig> distillation_section();
SchemaOf<TokenizerConfig> tokenizer_section();
SchemaOf<DataConfig> data_section();
SchemaOf<TrainingConfig> training_section();
SchemaOf<PrecisionConfig> precision_section();
SchemaOf<OptimizerConfig> optimizer_section();
SchemaOf<LrSchedulerConfig> lr_scheduler_section();
SchemaOf<ParallelismConfig> parallelism_section();
SchemaOf<CommConfig> comm_section();
SchemaOf<ActivationCheckpointConfig> activation_checkpoint_section();
SchemaOf<CheckpointConfig> checkpoint_section();
SchemaOf<ValidationConfig> validation_section();
SchemaOf<SamplingConfig> sampling_section();
SchemaOf<MetricsConfig> metrics_section();
SchemaOf<KernelsConfig> kernels_section();
SchemaOf<DebugConfig> debug_section();
SchemaOf<MachineConfig> machine_section();
SchemaOf<ExperimentalConfig> experimental_section();

}  // namespace stepforge
