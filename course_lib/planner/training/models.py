"""Models by name. Parameter counts are not stored: they follow from the shapes, and tests compare them."""

from dataclasses import replace

from .shapes import Transformer

_GPT2 = "Radford et al. 2019, table 2; heads and vocabulary from the released hparams.json"
_LLAMA2 = "Touvron et al. 2023 (arXiv 2307.09288); config.json of the released weights"
_LLAMA3 = "Llama 3 herd (arXiv 2407.21783), table 3; config.json of the released weights"
_PLAYBOOK = "Ultra-Scale Playbook (Hugging Face, 2025), the script of its benchmarks"
_MIXTRAL = "Jiang et al. 2024 (arXiv 2401.04088), table 1"
_QWEN3 = "Qwen3 (arXiv 2505.09388), tables 1 and 2; config.json of the released weights"
_GPT_OSS = "OpenAI 2025 (arXiv 2508.10925); config.json of the released weights"
_ZERO = "Rajbhandari et al. (arXiv 1910.02054), table 4; heads from its artifact appendix, tables 1 and 6"


def _gpt(name: str, layers: int, hidden: int, heads: int, source: str) -> Transformer:
    return Transformer(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden,
        vocab=50257, positions=1024, context=1024, gated=False, dropout=True, tied=True, source=source,
    )  # fmt: skip


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int,
    vocab: int = 32000, context: int = 4096, source: str = _LLAMA2, tied: bool = False,
) -> Transformer:  # fmt: skip
    return Transformer(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn,
        vocab=vocab, positions=0, context=context, gated=True, dropout=False, tied=tied, source=source,
    )  # fmt: skip


def _qwen3(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> Transformer:
    model = _llama(name, layers, hidden, heads, kv_heads, ffn, 151936, 40960, _QWEN3)
    return replace(model, head_size=128, vectors=2 * 128)  # the norms of queries and keys


# The ZeRO paper describes its models as similar to GPT-2, so they get GPT-2's vocabulary and context.
MODELS = {
    "gpt2": _gpt("GPT-2", 12, 768, 12, _GPT2),
    "gpt2-medium": _gpt("GPT-2 medium", 24, 1024, 16, _GPT2),
    "gpt2-large": _gpt("GPT-2 large", 36, 1280, 20, _GPT2),
    "gpt2-xl": _gpt("GPT-2 XL", 48, 1600, 25, _GPT2),
    "llama-7b": _llama("Llama 2 7B", 32, 4096, 32, 32, 11008),
    "llama-13b": _llama("Llama 2 13B", 40, 5120, 40, 40, 13824),
    "llama-70b": _llama("Llama 2 70B", 80, 8192, 64, 8, 28672),
    "llama3-8b": _llama("Llama 3.1 8B", 32, 4096, 32, 8, 14336, 128256, 131072, _LLAMA3),
    "llama3-70b": _llama("Llama 3.1 70B", 80, 8192, 64, 8, 28672, 128256, 131072, _LLAMA3),
    "llama-405b": _llama("Llama 3.1 405B", 126, 16384, 128, 8, 53248, 128256, 131072, _LLAMA3),
    "qwen3-8b": _qwen3("Qwen3 8B", 36, 4096, 32, 8, 12288),
    "mixtral-8x7b": replace(
        _llama("Mixtral 8x7B", 32, 4096, 32, 8, 14336, 32000, 32768, _MIXTRAL), experts=8, chosen=2
    ),
    "qwen3-30b-a3b": replace(_qwen3("Qwen3 30B-A3B", 48, 2048, 32, 4, 768), experts=128, chosen=8),
    "qwen3-235b-a22b": replace(_qwen3("Qwen3 235B-A22B", 94, 4096, 64, 4, 1536), experts=128, chosen=8),
    "gpt-oss-120b": replace(
        _llama("gpt-oss-120b", 36, 2880, 64, 8, 2880, 201088, 131072, _GPT_OSS), head_size=64, experts=128, chosen=4,
        vectors=64 * 64 + 2 * 8 * 64 + 2880 + 64 + 128 + 128 * 3 * 2880,  # biases; a sink for each head
    ),
    "playbook-1b": _llama("Ultra-Scale Playbook 1B", 16, 2048, 32, 32, 8192, 131072, 4096, _PLAYBOOK, tied=True),
    "playbook-3b": _llama("Ultra-Scale Playbook 3B", 28, 3072, 32, 32, 8192, 131072, 4096, _PLAYBOOK, tied=True),
    "playbook-8b": _llama("Ultra-Scale Playbook 8B", 32, 4096, 32, 32, 14336, 131072, 4096, _PLAYBOOK),
    "playbook-80b": _llama("Ultra-Scale Playbook 80B", 80, 8192, 64, 64, 28672, 131072, 4096, _PLAYBOOK),
    "zero-1.5b": _gpt("ZeRO paper's 1.5B", 48, 1600, 16, _ZERO),
    "zero-4b": _gpt("ZeRO paper's 4B", 64, 2304, 24, _ZERO),
    "zero-8b": _gpt("ZeRO paper's 8B", 72, 3072, 24, _ZERO),
    "zero-13b": _gpt("ZeRO paper's 13B", 62, 4096, 32, _ZERO),
    "zero-20b": _gpt("ZeRO paper's 20B", 98, 4096, 32, _ZERO),
    "zero-40b": _gpt("ZeRO paper's 40B", 88, 6144, 32, _ZERO),
    "zero-60b": _gpt("ZeRO paper's 60B", 132, 6144, 32, _ZERO),
    "zero-80b": _gpt("ZeRO paper's 80B", 100, 8192, 64, _ZERO),
    "zero-100b": _gpt("ZeRO paper's 100B", 125, 8192, 64, _ZERO),
    "zero-120b": _gpt("ZeRO paper's 120B", 150, 8192, 64, _ZERO),
    "zero-140b": _gpt("ZeRO paper's 140B", 175, 8192, 64, _ZERO),
    "zero-170b": _gpt("ZeRO paper's 170B", 212, 8192, 64, _ZERO),
}  # fmt: skip
