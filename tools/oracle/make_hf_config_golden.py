#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records how transformers reads config.json, for tests/catalog/hf_config_test.cpp. Needs no PyTorch.

    make_hf_config_golden.py tests/golden/hf_config

fields.json: every field of the configurations of our families, with its default, and the generation settings
             that older versions kept in config.json.
rope.json:   rotary settings as written in files, and the parameters that the model then uses. `refused` is the key
             that our reader names in its error: it refuses settings that versions of transformers read differently.
"""
import json
import pathlib
import sys
import warnings

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = LLAMA3 | {"original_max_position_embeddings": 512}
YARN = {"rope_type": "yarn", "factor": 4.0}
YARN_WITH_ALL = YARN | {"original_max_position_embeddings": 512, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7,
                        "mscale_all_dim": 0.9, "truncate": False}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.25, 1.5, 1.7, 2.0, 2.5, 3.0],
            "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 50.5]}
# (name, fields of the file, the key that our reader refuses)
CASES = [
    ("nothing", {}, None),
    ("theta", {"rope_theta": 5e5}, None),
    ("null scaling", {"rope_theta": 5e5, "rope_scaling": None}, None),
    ("empty scaling beside parameters",
     {"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}, None),
    ("theta in parameters", {"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}, None),
    ("parameters without theta", {"rope_parameters": {"rope_type": "default"}}, None),
    ("parameters without theta, theta on top", {"rope_theta": 3e4, "rope_parameters": {"rope_type": "default"}}, None),
    ("equal thetas", {"rope_theta": 7e4, "rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}, None),
    ("different thetas", {"rope_theta": 3e4, "rope_parameters": {"rope_type": "default", "rope_theta": 7e4}},
     "rope_theta"),
    ("scaling with another theta", {"rope_theta": 3e4, "rope_scaling": LONG | {"rope_theta": 7e4}}, "rope_theta"),
    ("llama3", {"rope_theta": 5e5, "rope_scaling": LONG}, None),
    ("llama3 in parameters", {"rope_parameters": LONG | {"rope_theta": 5e5}}, None),
    ("llama3 by its old key", {"rope_scaling": {"type": "llama3"} | {k: v for k, v in LONG.items() if k != "rope_type"}},
     None),
    ("llama3 without original positions", {"rope_scaling": LLAMA3}, None),
    ("llama3 with original positions on top", {"rope_scaling": LLAMA3, "original_max_position_embeddings": 256}, None),
    ("llama3 with original positions on top and inside",
     {"rope_scaling": LONG, "original_max_position_embeddings": 256}, "original_max_position_embeddings"),
    ("llama3 without high_freq_factor",
     {"rope_scaling": {k: v for k, v in LONG.items() if k != "high_freq_factor"}}, "high_freq_factor"),
    ("equal objects", {"rope_scaling": LONG, "rope_parameters": LONG}, None),
    ("yarn beside default parameters",
     {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_parameters": {"rope_type": "default"}},
     "rope_scaling"),
    ("linear beside default parameters",
     {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": {"rope_type": "default"}}, "rope_scaling"),
    ("yarn", {"rope_scaling": YARN}, None),
    ("yarn in parameters", {"rope_parameters": YARN_WITH_ALL | {"rope_theta": 5e5}}, None),
    ("yarn with an attention factor", {"rope_scaling": YARN | {"attention_factor": 1.25}}, None),
    ("yarn with nulls", {"rope_scaling": YARN | {"attention_factor": None, "beta_fast": None, "mscale": None}}, None),
    ("yarn with zeros", {"rope_scaling": YARN | {"beta_fast": 0}}, "beta_fast"),
    ("yarn without factor", {"rope_scaling": {"rope_type": "yarn"}}, "factor"),
    ("dynamic by the old key", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, None),
    ("linear wins over the old key", {"rope_scaling": {"rope_type": "linear", "type": "default", "factor": 4.0}}, None),
    ("linear with keys that it does not read", {"rope_scaling": LONG | {"rope_type": "linear"}}, "low_freq_factor"),
    ("linear without factor", {"rope_scaling": {"rope_type": "linear"}}, "factor"),
    ("longrope", {"rope_scaling": LONGROPE | {"factor": 4.0}}, None),
    ("longrope without factor", {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 512}}, None),
    ("longrope with original positions on top", {"rope_scaling": LONGROPE, "original_max_position_embeddings": 512}, None),
    ("longrope with an attention factor",
     {"rope_parameters": LONGROPE | {"rope_theta": 5e5, "factor": 2.0, "attention_factor": 1.25}}, None),
    ("longrope without long_factor", {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 8}}, "long_factor"),
    ("longrope with a factor that is no number", {"rope_scaling": LONGROPE | {"short_factor": [1.0, "2"]}}, "short_factor[1]"),
    ("proportional", {"rope_scaling": {"rope_type": "proportional", "factor": 4.0}}, "rope_type"),
    ("half the head rotated", {"rope_scaling": LONG | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("half the head rotated, on top", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("per layer type", {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 7e4}}},
     "full_attention"),
]
# Of a family whose layers with a window have their own.
TWO = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
       "sliding_attention": {"rope_type": "default", "rope_theta": 3e4}}
CASES_OF_TWO = [
    ("nothing", {}, None),
    ("thetas", {"rope_theta": 5e5, "rope_local_base_freq": 2e4}, None),
    ("scaling", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, None),
    ("scaling beside thetas",
     {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, None),
    ("parameters", {"rope_parameters": TWO}, None),
    ("parameters of one", {"rope_parameters": {"full_attention": TWO["full_attention"]}}, None),
    ("parameters of the other", {"rope_parameters": {"sliding_attention": TWO["sliding_attention"]}}, None),
    ("parameters beside another theta", {"rope_parameters": TWO, "rope_local_base_freq": 2e4}, "rope_theta"),
    ("flat parameters", {"rope_parameters": {"rope_type": "linear", "factor": 8.0}}, "rope_parameters"),
    ("scaling of layers with a window",
     {"rope_parameters": TWO | {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, "rope_type"),
]
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 2048}


def rope_of(config_class, fields):
    """The parameters with which the model's rotary embedding is built, or None if transformers refuses."""
    try:
        config = config_class.from_dict(json.loads(json.dumps(SHAPE | fields)))
        config.standardize_rope_params()  # as modeling_rope_utils does when the model is built
    except (KeyError, ValueError):
        return None
    if "full_attention" in config.rope_parameters:
        return config.rope_parameters
    return {key: value for key, value in config.rope_parameters.items() if key != "type"}


def longrope_tables():
    """The bits of the frequencies that transformers takes in calls of two lengths, and the factor of cosines and sines."""
    tables = []
    for theta, more in ((1e4, {}), (5e5, {"factor": 3.0}), (1e4, {"attention_factor": 1.25})):
        rope = LONGROPE | {"rope_theta": theta, "original_max_position_embeddings": 40} | more
        config = transformers.LlamaConfig(**SHAPE, rope_parameters=dict(rope))
        embedding = LlamaRotaryEmbedding(config)
        for length in (40, 41):
            embedding(torch.zeros(1), torch.arange(length)[None])
            tables.append({"rope": rope, "max_position": SHAPE["max_position_embeddings"], "length": length,
                           "bits": embedding.inv_freq.view(torch.int32).tolist(), "factor": embedding.attention_scaling})
    return tables


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    folder = pathlib.Path(sys.argv[1])
    families = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config,
                "mistral": transformers.MistralConfig, "olmo2": transformers.Olmo2Config,
                "gemma2": transformers.Gemma2Config, "gemma3_text": transformers.Gemma3TextConfig,
                "qwen3_moe": transformers.Qwen3MoeConfig, "qwen2_moe": transformers.Qwen2MoeConfig,
                "mixtral": transformers.MixtralConfig, "deepseek_v2": transformers.DeepseekV2Config,
                "deepseek_v3": transformers.DeepseekV3Config, "gpt_oss": transformers.GptOssConfig}
    fields = {"transformers": transformers.__version__}
    for name, config_class in families.items():
        fields[name] = json.loads(config_class().to_json_string(use_diff=False))
    fields["generation"] = sorted(transformers.GenerationConfig._get_default_generation_params())
    heads = {"mixtral": {"head_dim": 16}, "gpt_oss": {"head_dim": 16}}  # which it does not derive before it checks rotary settings
    cases = [{"name": name, "config": SHAPE | heads.get(family, {}) | {"model_type": family} | case,
              "rope": rope_of(config_class, heads.get(family, {}) | case), "refused": refused}
             for family, config_class in families.items()
             for name, case, refused in (CASES_OF_TWO if family == "gemma3_text" else CASES)]
    lines = ",\n ".join(json.dumps(case, sort_keys=True) for case in cases)
    (folder / "rope.json").write_text(f"[{lines}]\n")
    (folder / "longrope.json").write_text(json.dumps(longrope_tables(), indent=1, sort_keys=True) + "\n")
    (folder / "fields.json").write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
