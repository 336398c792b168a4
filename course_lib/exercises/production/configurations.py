"""DeepSpeed configurations, drawn for the exercises that read them."""

from __future__ import annotations

import random
from typing import Any

Config = dict[str, Any]


def draw_batches(rng: random.Random, world_size: int) -> Config:
    """Two of the three sizes of batches, or all, that agree; now and then but one."""
    micro, steps = rng.randint(2, 5), rng.randint(2, 4)
    sizes = {
        "train_batch_size": micro * steps * world_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
    }
    kept = rng.choice(
        [
            ("train_batch_size", "train_micro_batch_size_per_gpu"),
            ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
            tuple(sizes),
            ("train_micro_batch_size_per_gpu",),
        ]
    )
    return {key: sizes[key] for key in kept}


def offload(rng: random.Random) -> Config:
    """Where to: nothing said, nowhere, or the CPU."""
    return rng.choice([{}, {"device": "none"}, {"device": "cpu"}, {"device": "cpu", "pin_memory": True}])
