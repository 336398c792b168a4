"""A GPT of 0.35 and of 1.3 billion parameters in bf16, beside its plan: its peak, and its tokens a second."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import ModuleList
from torch.nn.functional import cross_entropy

from course_lib import TinyGPT, batch, plan, planner

from .figures import GPU, Figure, Jobs, megabytes, on_the_gpu, step_seconds

Size = tuple[int, int, int, int]
SIZES = {"0.35 B": (1024, 28, 16, 1024), "1.3 B": (2048, 26, 16, 1024)} if GPU else {"tiny": (32, 2, 4, 32)}
"""Width, layers, heads and context."""

MICRO_BATCHES, BATCH = 3, 4
CARDS = {"h100": "h100", "h200": "h200", "a100": "a100", "4090": "rtx-4090"}
"""A word in a GPU's name, and the planner's name of its machine."""


def gpt(out: Path) -> Jobs:
    """With and without checkpointing and torch.compile."""
    return {
        f"{size}, checkpointed={checkpointed}, compiled={compiled}": partial(
            peak_and_speed, SIZES[size], checkpointed, compiled
        )
        for size, compiled, checkpointed in product(SIZES, (False, True), (False, True))
    }


def peak_and_speed(size: Size, checkpointed: bool, compiled: bool) -> Iterator[Figure]:
    peak, rate = on_the_gpu(1, timeout=120, measure=False).run(train, size, checkpointed, compiled)[0]
    expected = planned(size, checkpointed, compiled)
    card = torch.cuda.get_device_name().lower() if GPU else ""
    rates = {name: expected.tokens_per_second(name) for word, name in CARDS.items() if word in card}
    yield megabytes("peak", peak if GPU else None, plan=expected.active_bytes)
    yield Figure(what="speed", value=rate if GPU else None, unit="tokens/s", beside=rates)


def train(size: Size, checkpointed: bool, compiled: bool) -> tuple[int, float]:
    """On a rank: the most bytes that CUDA's allocator held, and the tokens a second after the first steps."""
    width, layers, heads, context = size
    model = TinyGPT(width, layers, heads, context).to(torch.bfloat16)
    if GPU:
        torch.cuda.reset_peak_memory_stats()  # the process may have trained the model before
    if compiled:
        for block in model.blocks:
            block.compile(backend="inductor" if GPU else "aot_eager")
    if checkpointed:
        model.blocks = ModuleList(map(checkpoint_wrapper, model.blocks))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        for number in range(MICRO_BATCHES):
            tokens, targets = batch(number, BATCH, context)
            loss = cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())
            (loss / MICRO_BATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()

    rate = MICRO_BATCHES * BATCH * context / step_seconds(step)
    return torch.cuda.max_memory_allocated(), rate


def planned(size: Size, checkpointed: bool, compiled: bool) -> planner.Plan:
    width, layers, heads, context = size
    model = planner.Transformer(
        name="TinyGPT", layers=layers, hidden=width, heads=heads, kv_heads=heads, ffn=4 * width, vocab=256,
        positions=context, context=context, gated=False, dropout=False, tied=False, source="course_lib.TinyGPT",
    )  # fmt: skip
    return plan(
        model=model, precision="bf16", optimizer="adamw", batch=BATCH, sequence=context, micro_batches=MICRO_BATCHES,
        checkpointing="full" if checkpointed else "none", attention="flash", compiled=compiled, engine="torch",
        implementation="foreach",
    )  # fmt: skip
