"""`Transformer.from_config`: Hugging Face's `config.json`, and the published numbers of parameters."""

from typing import Any

import pytest

from course_lib.planner import MODELS, Transformer, plan

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
QWEN3 = LLAMA | {
    "model_type": "qwen3", "num_hidden_layers": 36, "intermediate_size": 12288, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip
QWEN3_MOE = QWEN3 | {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_key_value_heads": 4,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip
MIXTRAL = LLAMA | {
    "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
QWEN2 = LLAMA | {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
    "attn_pdrop": 0.1,
}  # fmt: skip
DEEPSEEK_MOE = LLAMA | {
    "model_type": "deepseek", "num_hidden_layers": 28, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 10944, "vocab_size": 102400, "n_routed_experts": 64,
    "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip

GEMMA2 = {
    "model_type": "gemma2", "num_hidden_layers": 26, "hidden_size": 2304, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 9216, "vocab_size": 256000, "max_position_embeddings": 8192,
    "head_dim": 256, "sliding_window": 4096,
}  # fmt: skip
OLMO2 = LLAMA | {
    "model_type": "olmo2", "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 100352,
}  # fmt: skip
GPT_OSS = MIXTRAL | {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64,
    "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 32, "num_experts_per_tok": 4,
    "attention_bias": True,
}  # fmt: skip

LING = QWEN3_MOE | {
    "model_type": "bailing_moe", "num_hidden_layers": 20, "num_attention_heads": 16, "num_experts": 256,
    "moe_intermediate_size": 512, "intermediate_size": 5120, "vocab_size": 157184, "first_k_dense_replace": 1,
    "num_shared_experts": 1,
}  # fmt: skip


def test_gemma_3s_file_leaves_out_what_is_transformers_default() -> None:
    """Of 4B: the Hub's file has no vocabulary, context or heads. 2,560 x 262,208 are the embedding."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024}  # fmt: skip
    model = Transformer.from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}})

    assert (model.vocab, model.context, model.heads, model.kv_heads, model.head_size) == (262208, 131072, 8, 4, 256)
    assert plan(model=model).model.params == pytest.approx(3_880_263_168, rel=1e-3)


@pytest.mark.parametrize(
    ("config", "window", "layers"),
    [
        (LLAMA | {"sliding_window": 64}, 64, 32), (LLAMA | {"sliding_window": None}, 0, 0),
        (QWEN2 | {"sliding_window": 64}, 0, 0), (QWEN2 | {"sliding_window": 64, "use_sliding_window": True}, 0, 0),
        (QWEN2 | {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 28}, 0, 0),
        (QWEN2 | {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 21}, 64, 7),
        (QWEN2 | {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, 64, 28),
        (QWEN3 | {"sliding_window": 64, "use_sliding_window": True}, 64, 8),
        (QWEN3_MOE | {"model_type": "qwen2_moe", "sliding_window": 64, "use_sliding_window": True}, 64, 14),
        (QWEN3_MOE | {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 48}, 64, 48),
        (LLAMA | {"model_type": "gemma3_text", "sliding_window": 64}, 64, 27),
        (LLAMA | {"layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 64}, 64, 16),
    ],
)  # fmt: skip
def test_layers_with_a_window_see_fewer_tokens(config: dict[str, Any], window: int, layers: int) -> None:
    """Twice the tokens that the mask leaves on average, as a whole sequence counts with the half that it discards.

    The numbers of layers are those of transformers' configurations.
    """
    model = Transformer.from_config(config)

    assert (model.window, model.windowed_layers) == (window, layers)
    for sequence in (50, 64, 128, 1024):
        left = sum(min(token, window or sequence) - 0.5 for token in range(1, sequence + 1))
        seen = 2 * left / sequence * layers / model.layers + sequence * (1 - layers / model.layers)
        assert model.seen(sequence) == pytest.approx(seen, rel=0.01)


@pytest.mark.parametrize(
    ("config", "params"),
    [
        (LLAMA, 8_030_261_248), (QWEN3, 8_190_735_360), (QWEN3_MOE, 30_532_122_624), (MIXTRAL, 46_702_792_704),
        (QWEN2, 7_615_616_512), (GPT2, 124_439_808), (DEEPSEEK_MOE, 16_375_728_128),
        (GEMMA2, 2_614_341_888), (OLMO2, 7_298_617_344), (GPT_OSS, 20_914_757_184),
        (DEEPSEEK_MOE | {"first_k_dense_replace": None, "mlp_layer_types": ["dense"] + ["sparse"] * 27},
         16_375_728_128), (QWEN3 | {"num_experts": 64, "is_moe": False}, 8_190_735_360),
    ],
)  # fmt: skip
def test_numbers_of_parameters_are_those_of_the_released_weights(config: dict[str, object], params: int) -> None:
    """As Hugging Face's pages of the models say: Llama 3.1 8B, Qwen3 8B and 30B-A3B, Mixtral 8x7B, Qwen2.5 7B, ..."""
    assert plan(model=Transformer.from_config(config)).model.params == params


@pytest.mark.parametrize(
    ("config", "active"), [(MIXTRAL, 12.9e9), (QWEN3_MOE, 3.3e9), (DEEPSEEK_MOE, 2.8e9), (LING, 1.43e9)]
)
def test_active_parameters_are_those_of_their_authors(config: dict[str, object], active: float) -> None:
    model = Transformer.from_config(config)

    assert plan(model=model).model.params - model.idle == pytest.approx(active, rel=0.025)


@pytest.mark.parametrize(
    ("config", "elements"),
    [
        (LLAMA | {"attention_bias": True}, 4096 + 2 * 1024 + 4096), (LLAMA | {"mlp_bias": True}, 2 * 14336 + 4096),
        (LLAMA | {"attention_bias": True, "attention_out_bias": False, "model_type": "seed_oss"}, 4096 + 2 * 1024),
        (LLAMA | {"attention_bias": True, "model_type": "glm"}, 4096 + 2 * 1024),
        (QWEN2 | {"attention_bias": True}, 3584 + 2 * 512), (GPT_OSS, 4096 + 2 * 512 + 2880 + 64 + 32 * (1 + 3 * 2880)),
    ],
)  # fmt: skip
def test_a_layer_has_the_biases_that_transformers_gives_it(config: dict[str, Any], elements: int) -> None:
    assert Transformer.from_config(config).vectors == elements


def test_multi_query_is_one_head_of_keys_and_values() -> None:
    assert Transformer.from_config(GPT2 | {"multi_query": True}).kv_heads == 1
    assert Transformer.from_config(LLAMA | {"multi_query": True}).kv_heads == 8


def test_the_same_model_by_name_and_by_file() -> None:
    read, named = Transformer.from_config(LLAMA), MODELS["llama3-8b"]

    assert read.units == named.units
    assert Transformer.from_config(GPT2).units == MODELS["gpt2"].units


def test_a_head_may_be_larger_than_its_part_of_hidden() -> None:
    """Qwen3 0.6B: 16 heads of 128 with 1024 hidden."""
    model = Transformer.from_config(
        QWEN3 | {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 28, "intermediate_size": 3072,
                 "tie_word_embeddings": True}
    )  # fmt: skip

    assert (model.q_hidden, model.kv_hidden) == (2048, 1024)
    assert plan(model=model).model.params == 596_049_920
    assert model.layer_flops(100)[1] == 4 * 100 * 2048


def test_a_text_model_inside_another_is_found() -> None:
    assert Transformer.from_config({"model_type": "any", "text_config": LLAMA}).layers == 32
    assert [Transformer.from_config(LLAMA | {"model_type": kind}).name for kind in (None, [7])] == ["", "[7]"]


def test_zero_of_what_a_model_lacks_is_accepted() -> None:
    none = {"num_experts": 0, "num_experts_per_tok": 0, "sliding_window": 0, "head_dim": 0}
    assert Transformer.from_config(LLAMA | none) == Transformer.from_config(LLAMA)


def test_what_a_file_leaves_out_is_the_default_of_transformers() -> None:
    """Command R and StarCoder2 are tied, and do not say so; Mistral inside Pixtral is not."""
    plain = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    inside = {"text_config": plain}

    tied = [Transformer.from_config(one).tied for one in (plain, inside, inside | {"tie_word_embeddings": True})]
    assert tied == [True, False, True]
    assert Transformer.from_config({"text_config": plain | {"model_type": "gemma2"}}).tied


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "mamba", "hidden_size": 4096, "vocab_size": 32000},
            "without num_hidden_layers or n_layer, num",
        ),
        ({}, "config.json of no known architecture: without num_hidden_layers or n_layer, hidden_size or n_embd"),
        (LLAMA | {"kv_lora_rank": 512, "model_type": "deepseek_v3"}, "deepseek_v3: kv_lora_rank describes layers that"),
        ([], "config.json: it has no keys"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size='4096': it has to be a whole number"),
        (LLAMA | {"vocab_size": -1}, "vocab_size=-1: it has to be a whole number, from 1 to 1000000000. Try"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000: it has to be a whole number, from 1 to"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers=0: it has to be a whole number, from 1 to 10000. Try"),
        (LLAMA | {"num_key_value_heads": 0}, "num_key_value_heads=0: it has to be a whole number, from 1 to"),
        (MIXTRAL | {"num_experts_per_tok": 0}, "num_experts_per_tok=0: it has to be a whole number, from 1 to"),
        (LLAMA | {"num_attention_heads": 0, "kv_lora_rank": 512}, "llama: kv_lora_rank describes layers that"),
        (LLAMA | {"tie_word_embeddings": "false"}, "tie_word_embeddings='false': it has to be true or false"),
        (MIXTRAL | {"intermediate_size": [2] * 99}, "mixtral: intermediate_size is a list, a number for each layer"),
        (LLAMA | {"num_key_value_heads": [2] * 32}, "llama: num_key_value_heads is a list, a number for each layer"),
        (QWEN3_MOE | {"moe_intermediate_size": 0}, "moe_intermediate_size=0: it has to be a whole number, from 1 to"),
        (QWEN3_MOE | {"decoder_sparse_step": 0}, "decoder_sparse_step=0: it has to be a whole number, from 1 to"),
        (QWEN3_MOE | {"decoder_sparse_step": -1}, "decoder_sparse_step=-1: it has to be a whole number, from 1 to"),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, "qwen3_moe: decoder_sparse_step describes layers that"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "num_experts_per_tok=9: .* from 1 to 8. Try num_experts_per_tok=8"),
        (LING | {"first_k_dense_replace": 21}, "first_k_dense_replace=21: .* Try first_k_dense_replace=20"),
        (MIXTRAL | {"num_experts_per_tok": None}, "config.json of mixtral: without num_experts_per_tok"),
        (MIXTRAL | {"mamba_d_state": 16, "model_type": "jamba"}, "jamba: mamba_d_state describes layers that"),
        ({"text_config": MIXTRAL | {"intermediate_size_mlp": 16384}}, "intermediate_size_mlp describes layers that"),
        (LLAMA | {"moe_num_experts": 64, "model_type": "ernie4_5_moe"}, "ernie4_5_moe: moe_num_experts describes"),
        (LLAMA | {"parallel_attn": True, "model_type": "falcon"}, "falcon: parallel_attn describes layers that"),
        (LLAMA | {"type_vocab_size": 2, "model_type": "bert"}, "bert: type_vocab_size describes layers that"),
        (MIXTRAL | {"hidden_act": "gelu"}, "mixtral: hidden_act='gelu' does not say whether"),
        (LLAMA | {"hidden_act": "relu2", "model_type": "bitnet"}, "bitnet: hidden_act='relu2' does not say"),
        (MIXTRAL | {"mlp_layer_types": ["sparse", "dense"] * 16}, "mlp_layer_types describes layers"),
        (LLAMA | {"layer_types": ["conv", "full_attention"], "model_type": "lfm2"}, "lfm2: conv describes layers that"),
        (LLAMA | {"global_head_dim": 512, "model_type": "gemma4_text"}, "gemma4_text: global_head_dim describes"),
        (
            {key: value for key, value in DEEPSEEK_MOE.items() if key != "intermediate_size"} | {"q_lora_rank": 1024},
            "deepseek: q_lora_rank describes layers",
        ),
    ],
)
def test_an_unknown_architecture_is_refused(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transformer.from_config(config)
