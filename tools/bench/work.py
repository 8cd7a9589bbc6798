# SPDX-License-Identifier: Apache-2.0
"""Configurations of the benchmark, and the matrix products of a training step."""
import tomllib


def configuration(path, overrides=()):
    """What the file says, with values of the form section.key=value, as on Stepforge's command line."""
    with open(path, "rb") as file:
        config = tomllib.load(file)
    for override in overrides:
        for section, values in tomllib.loads(override).items():
            config.setdefault(section, {}).update(values)
    return config


def matrix_shapes(m, tokens):
    """(rows, inner, columns, how often in a forward pass) of every product with a weight. Those with the experts of a layer count as
    one product of all their rows."""
    layers, dense = m["n_layers"], m.get("first_dense_layers", 0) if "n_experts" in m else m["n_layers"]
    return [
        *((tokens, inner, columns, layers) for inner, columns in attention_shapes(m)),
        *mlp_shapes(m["dim"], tokens, m["ffn_dim"], dense),
        *(expert_shapes(m, tokens, layers - dense) if layers > dense else []),
        (tokens, m["dim"], m["vocab_size"], 1),
    ]  # fmt: skip


def attention_shapes(m):
    """(inner, columns) of the projections of a layer."""
    if "kv_lora_rank" not in m:
        head_dim = m.get("head_dim", m["dim"] // m["n_heads"])
        return [(m["dim"], (m["n_heads"] + 2 * m["n_kv_heads"]) * head_dim), (m["n_heads"] * head_dim, m["dim"])]
    return [
        (m["dim"], m["q_lora_rank"]), (m["q_lora_rank"], m["n_heads"] * (m["qk_nope_head_dim"] + m["qk_rope_head_dim"])),
        (m["dim"], m["kv_lora_rank"] + m["qk_rope_head_dim"]),
        (m["kv_lora_rank"], m["n_heads"] * (m["qk_nope_head_dim"] + m["v_head_dim"])), (m["n_heads"] * m["v_head_dim"], m["dim"]),
    ]  # fmt: skip


def mlp_shapes(dim, tokens, hidden, layers):
    return [(tokens, dim, 2 * hidden, layers), (tokens, hidden, dim, layers)] if layers > 0 and hidden > 0 else []


def expert_shapes(m, tokens, layers):
    return [
        (tokens, m["dim"], m["n_experts"], layers),
        *mlp_shapes(m["dim"], tokens * m["experts_per_token"], m["moe_ffn_dim"], layers),
        *mlp_shapes(m["dim"], tokens, m.get("n_shared_experts", 0) * m["moe_ffn_dim"], layers),
    ]


def work_of(config):
    """Tokens per step, and the FLOPs of its matrix products with weights, forward and backward."""
    training = config["training"]
    tokens = training["seq_len"] * training["local_batch_size"]
    return tokens, sum(3 * 2.0 * rows * inner * columns * times for rows, inner, columns, times in matrix_shapes(config["model"], tokens))
