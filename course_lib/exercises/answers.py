"""The answers to the predictions of the incident room, kept out of its cells, where a learner would see them."""

ANSWERS: dict[str, dict[str, str | float]] = {
    "incidents.out_of_memory": {
        "where": "rank 2, at line 19",
        "why": "those of one step earlier on the other ranks",
    },
    "incidents.mixed_data": {
        "where": "rank 1's all-gather with number 9, at line 17",
        "why": "shards of the vision tower and, from rank 1, of the language model",
    },
    "incidents.last_step": {"where": "rank 0 made a step more than ranks 1 and 2", "weight": 2},
    "incidents.broken_sample": {
        "where": "line 18: if loss > 30",
        "why": "different parameters; three of them trained with the broken sample",
    },
    "incidents.first_checkpoint": {
        "where": "rank 0, at line 21",
        "why": "With DDP rank 0 has the whole model, so it calls no collective",
    },
    "incidents.thirty_minutes": {"where": "rank 0, at line 10", "why": "less work for the slowest rank"},
    "incidents.warm_forward": {
        "where": "line 12: the optimizer is made",
        "why": "The optimizer has their whole tensors, and backward gives gradients to their shards",
    },
    "incidents.untied": {"where": "line 12: to_empty", "count": 1},
    "incidents.lost_updates": {
        "small": 1,
        "why": "weights in fp32 for the optimizer, rounded to bf16 for the layer",
    },
    "incidents.short_answers": {"weight": 4.5, "where": "line 12: the loss"},
    "incidents.one_dropout": {
        "where": "line 25: torch.save on rank 0",
        "why": "Each restart repeats the masks that this seed begins with",
    },
    "incidents.cold_resume": {
        "where": "the optimizer's part of states(), called at line 18",
        "why": "dcp.load reads what the dict has names for, and it has none for the moments",
    },
    "incidents.whole_average": {"held": 2400, "where": "the average, filled before fully_shard"},
    "incidents.stage_norm": {"norm": 1.774, "group": "stages: they have different parameters"},
}
