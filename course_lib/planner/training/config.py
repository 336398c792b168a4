"""Hugging Face's `config.json`, read as the numbers that describe a transformer."""

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from .checks import PlanError, whole

_KEYS = {
    "layers": ("num_hidden_layers", "n_layer"), "hidden": ("hidden_size", "n_embd"), "vocab": ("vocab_size",),
    "heads": ("num_attention_heads", "n_head"), "context": ("max_position_embeddings", "n_positions"),
    "ffn": ("intermediate_size", "n_inner"),
}  # fmt: skip
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")
_SHARED = ("n_shared_experts", "num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
_DENSE = ("first_k_dense_replace", "num_dense_layers")
_NUMBERS = [key for keys in _KEYS.values() for key in keys] + [
    *_EXPERTS, *_SHARED, *_SHARED_WIDTH, *_DENSE, "num_key_value_heads", "head_dim", "moe_intermediate_size",
    "num_experts_per_tok", "decoder_sparse_step", "sliding_window",
]  # fmt: skip
_FLAGS = ("tie_word_embeddings", "attention_bias", "attention_out_bias", "mlp_bias", "is_moe", "use_residual",
          "use_sliding_window", "multi_query")  # fmt: skip
_MOST, _MOST_LAYERS = 10**9, 10**4  # larger ones are a mistake in the file, and overflow, or take minutes
_GATED = ("silu", "swish", "swiglu")
_GATED_GELU = ("gemma", "gemma2", "gemma3_text", "vaultgemma", "glm4")
_PLAIN = ("gpt2", "gpt_neox", "phi", "starcoder2", "nemotron", "apertus", "arcee", "persimmon")  # without a gate
_ATTENTION = ("attention", "full_attention", "sliding_attention", "chunked_attention")
_BIASED = ("qwen2",)  # of queries, keys and values; their files do not say so
_OUTPUT_UNBIASED = ("qwen2", "glm", "helium", "solar_open")  # attention_bias: of queries, keys and values only
_NORMED = ("qwen3", "gemma3_text", "exaone4")  # norms of a head of queries and of keys
_NORMED_WHOLE = ("olmo2", "olmo3", "olmoe")  # of all heads together
_FOUR_NORMS = ("gemma2", "gemma3_text", "glm4")
_GEMMA3 = {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}  # transformers' defaults, which the files of Gemma 3 leave out
_TOWERS = ("vision_config", "audio_config")  # beside the decoder: they are not counted
_UNKNOWN = (
    "kv_lora_rank", "q_lora_rank",  # latent attention: DeepSeek
    "v_head_dim", "global_head_dim",  # heads of two sizes: MiMo, Gemma 4
    "ssm_state_size", "mamba_d_state", "layers_block_type", "linear_num_key_heads", "linear_attn_config",
    "attn_type_list",  # state spaces, linear attention: Jamba, Qwen3-Next, Kimi, MiniMax
    "intermediate_size_mlp", "moe_num_experts", "residual_moe", "mlp_only_layers",  # experts: Llama 4, ERNIE, Grok
    "parallel_attn", "new_decoder_architecture", "num_key_value_heads_per_layer",  # Falcon, DeciLM
    "layer_group_size", "total_ut_steps", "H_cycles",  # linear attention and loops: Ring, Ouro, HRM
    "is_encoder_decoder", "type_vocab_size",  # T5, BERT
)  # fmt: skip


def described(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Transformer`.

    Raises:
        PlanError: keys are missing, numbers are none, or it is no decoder whose layers are all attention and
            feed-forward layer.
    """
    file, config = config, _decoder(config)
    kind = _printable(config.get("model_type") or "")
    if kind == "gemma3_text":
        config = _GEMMA3 | config
    names = {name: next((key for key in keys if config.get(key)), None) for name, keys in _KEYS.items()}
    if kind == "gpt2":
        config = {**config, "n_inner": config.get("n_inner") or 4 * config.get("n_embd", 0)}
        names["ffn"] = "n_inner"
    experts = _first(config, _EXPERTS) if config.get("is_moe", True) else 0  # Doge's file names experts that it lacks
    _check_layers(config, kind, experts)
    _check_keys(config, kind, experts, names)
    gated = config.get("hidden_act") in _GATED or kind in _GATED_GELU
    if not gated and kind not in _PLAIN:
        raise PlanError(
            f"config.json of {kind}: hidden_act={config.get('hidden_act')!r} does not say whether the feed-forward "
            "layer has a gate. Give the numbers to Transformer(...), with gated=True or False."
        )
    # A file leaves out what is transformers' default: True, or of a model inside another, that model's.
    tied = "text_config" not in file or kind in _GATED_GELU
    found: dict[str, Any] = {name: config[key] for name, key in names.items() if key}
    found |= {
        "name": _printable(config.get("_name_or_path") or kind), "source": "config.json", "gated": gated,
        "kv_heads": config.get("num_key_value_heads") or (1 if config.get("multi_query") else found["heads"]),
        "head_size": config.get("head_dim") or found["hidden"] // found["heads"],
        "positions": found["context"] if kind == "gpt2" else 0, "dropout": bool(config.get("attn_pdrop")),
        "tied": bool(config.get("tie_word_embeddings", file.get("tie_word_embeddings", tied))),
    } | _windows(config, kind, found["layers"])  # fmt: skip
    found["vectors"] = _vectors(config, kind, found, experts)
    if any(key in file for key in _TOWERS):
        found["name"] += ", its text part"
    return found | _experts(config, found, experts)


def _decoder(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the file says of its decoder, with whole numbers."""
    config = file.get("text_config", file) if isinstance(file, Mapping) else file
    if not isinstance(config, Mapping):
        raise PlanError("config.json: it has no keys. Give the file that belongs to a model's weights.")
    for key in _FLAGS:
        if isinstance(flag := config.get(key, file.get(key)), str):
            raise PlanError(f"config.json: {key}={reprlib.repr(flag)}: it has to be true or false, without quotes.")
    given = [key for key in _NUMBERS if config.get(key) and not isinstance(config[key], list)]  # 0: it has none
    decoder = {**config, **{key: _number(config, key) for key in given}}
    layers = config.get("attn_type_list")
    if isinstance(layers, list) and layers and all(one == 1 for one in layers):  # MiniMax M2: attention in all layers
        decoder["attn_type_list"] = None
    return decoder


def _check_layers(config: Mapping[str, Any], kind: str, experts: int) -> None:
    strange = [key for key in _UNKNOWN if config.get(key)]
    if experts and config.get("decoder_sparse_step") not in (None, 0, 1):  # layers without experts between others
        strange.append("decoder_sparse_step")
    layers, dense = config.get("layer_types"), config.get("mlp_layer_types")
    if isinstance(dense, list) and "dense" in dense[dense.count("dense") :]:
        strange.append("mlp_layer_types")
    strange += sorted({_printable(one) for one in layers} - {*_ATTENTION}) if isinstance(layers, list) else []
    if strange:
        raise PlanError(
            f"config.json of {kind}: {', '.join(strange)} describes layers that the planner does not know, such as "
            "latent attention or a state space. Give a number of parameters instead, such as params=7e9."
        )
    if lists := [key for key in _NUMBERS if isinstance(config.get(key), list)]:  # Gemma 3n, OpenELM
        raise PlanError(
            f"config.json of {kind}: {', '.join(lists)} is a list, a number for each layer, and the planner knows "
            "layers of one size only. Give a number of parameters instead, such as params=7e9."
        )


def _check_keys(config: Mapping[str, Any], kind: str, experts: int, names: Mapping[str, str | None]) -> None:
    needed = [key for name, keys in _KEYS.items() if names[name] is None for key in keys]
    of_experts = ["num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"] if experts else []
    for key in [*needed, "num_key_value_heads", *of_experts]:
        if config.get(key) is not None:
            _number(config, key)  # 0 is refused here
    missing = [" or ".join(_KEYS[name]) for name, key in names.items() if key is None]
    missing += ["num_experts_per_tok"] if experts and not config.get("num_experts_per_tok") else []
    if missing:
        raise PlanError(
            f"config.json of {kind or 'no known architecture'}: without {', '.join(missing)}. Add these keys, or give "
            "the numbers to Transformer(...)."
        )


def _vectors(config: Mapping[str, Any], kind: str, found: Mapping[str, Any], experts: int) -> int:
    """Return the parameters of a layer that are in no matrix: biases, and norms beside the usual two."""
    heads, kv_heads, size, hidden, ffn = (found[name] for name in ("heads", "kv_heads", "head_size", "hidden", "ffn"))
    vectors: int = 0
    biased = config.get("attention_bias")
    if found["gated"]:  # without a gate, all layers are taken to have biases
        vectors += size * (heads + 2 * kv_heads) * bool(biased or kind.startswith(_BIASED))
        vectors += hidden * bool(config.get("attention_out_bias", biased and not kind.startswith(_OUTPUT_UNBIASED)))
        vectors += (2 * ffn + hidden) * bool(config.get("mlp_bias") and not experts)
    vectors += 2 * size * kind.startswith(_NORMED) + size * (heads + kv_heads) * (kind in _NORMED_WHOLE)
    vectors += hidden * (2 * (kind in _FOUR_NORMS) + (kind == "qwen2_moe"))  # the gate of shared experts
    if kind == "gpt_oss":  # biases of the router and of experts, and a sink for each head
        vectors += heads + experts * (1 + 2 * ffn + hidden)
    return vectors


def _experts(config: Mapping[str, Any], found: Mapping[str, Any], experts: int) -> dict[str, int]:
    """Return the widths and the numbers of experts; nothing if there are none."""
    if not experts:
        return {}
    chosen = whole("num_experts_per_tok", config["num_experts_per_tok"], most=experts)
    width = config.get("moe_intermediate_size") or found["ffn"]
    beside = found["hidden"] if config.get("use_residual") else 0  # Arctic's
    key = next((key for key in _DENSE if config.get(key)), "")
    first = whole(key, config[key], most=found["layers"]) if key else 0
    if isinstance(dense := config.get("mlp_layer_types"), list):
        first = dense[: found["layers"]].count("dense")
    return {
        "dense_layers": first, "dense_ffn": found["ffn"], "ffn": width, "experts": experts, "chosen": chosen,
        "shared_ffn": _first(config, _SHARED_WIDTH) or width * _first(config, _SHARED) or beside,
    }  # fmt: skip


def _number(config: Mapping[str, Any], key: str) -> int:
    return whole(key, config[key], most=_MOST_LAYERS if key in _KEYS["layers"] else _MOST)


def _printable(value: object) -> str:
    """Return text without characters that change a terminal: a file is anybody's."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))


def _windows(config: Mapping[str, Any], kind: str, layers: int) -> dict[str, int]:
    """Return the window, and how many layers have it: by their types, all but every n-th or the first, or all."""
    window, types = config.get("sliding_window") or 0, config.get("layer_types")
    if not window or config.get("use_sliding_window", not kind.startswith("qwen")) is False:
        return {}
    every = config.get("sliding_window_pattern") or {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}.get(kind, 0)
    windowed = layers - layers // every if every and isinstance(every, int) else layers
    if isinstance(types, list):
        windowed = min(layers, types.count("sliding_attention"))
    elif kind.startswith("qwen") and kind != "qwen3_moe":  # after the first layers; in Qwen2-MoE, half of the first
        full = config.get("max_window_layers")
        full = 28 if full is None else whole("max_window_layers", full, least=0)
        windowed = (min(layers, full) + 1) // 2 if kind == "qwen2_moe" else max(0, layers - full)
    return {"window": window, "windowed_layers": windowed} if windowed else {}


def _first(config: Mapping[str, Any], keys: Iterable[str]) -> int:
    """Return the first of these keys' numbers that is not 0; 0 if there is none."""
    return next((config[key] for key in keys if config.get(key)), 0)
