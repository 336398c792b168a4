"""Incident: the exported model is far worse than the trained one, because `to_empty` untied its weights."""


import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ...data import TinyGPT
from ...exercises import Case, Exercise, Solution
from ..cluster.data import notes_its_runs


def draw(rng: random.Random, number: int) -> Case:
    world_size, width, seed = 2 + number % 2, 4 * rng.randint(2, 3), rng.getrandbits(31)
    what = f"TinyGPT of width {width}, 6 steps"
    return Case(world_size=world_size, args=lambda rank: (width, seed), what=what)


def trained_and_exported(solution: Solution, width: int, seed: int) -> dict[str, Any]:
    """Train, export, load the export as a server would, and compare the losses of the last batch."""
    models, ran = list[TinyGPT](), list[Any]()

    def make_model() -> TinyGPT:
        models.append(TinyGPT(width, layers=1, heads=2, context=8, tied=True))
        notes_its_runs(models[-1], ran)
        return models[-1]

    torch.manual_seed(seed)
    checkpoint = make_model().state_dict()
    batches = torch.randint(8, (6, 4, 9), generator=torch.Generator().manual_seed(seed + dist.get_rank()))
    losses, export = solution(make_model, checkpoint, list(batches))
    trained, server = (ran or models)[-1], make_model()
    served = server.load_state_dict(export, strict=False)
    with torch.no_grad():
        scores, targets = server(batches[-1, :, :-1]), batches[-1, :, 1:]
        served_loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten()).item()
    return {
        "losses": losses,
        "loss of the exported model": served_loss,
        "the server lacks": [name for name in served.missing_keys if name != "head.weight"],
        "names in the export": sorted(export),
        "tied at the end": trained.head.weight is trained.embedding.weight,
    }


exercise = Exercise("incidents.untied", title="Incident: worse after the export", draw=draw,
    answers={
        "where": "line 12: to_empty",
        "count": 1,
    },
    trial=trained_and_exported, inputs_matter=False, case_count=2, tolerance=1e-3, task="""
    Embedding and head of the model share one weight. The job trains well, and the exported model is much worse than
    the last loss of the training. The export has all names except `head.weight`, as the servers expect: they tie the
    head again. Repair the training program.
    """, hints="""
    How many parameters does the model have on the meta device, and how many when the optimizer is made? Count them:
    `len(list(model.parameters()))`.

    A tied weight is one parameter under two names. Which line gives each name a tensor of its own?

    `to_empty` makes new parameters, module by module. Loading fills both with the same numbers, so the first loss is
    right. They have to be one parameter again before the optimizer and the engine see them.

    ```python
    model.to_empty(device="cpu")
    model.head.weight = ...
    ```
    """, explanation="""
    After `to_empty` the embedding and the head were two parameters. Each got its part of the gradient, the training
    went on with both, and the export left one of them out. The loss curve differs only a little, so nothing shows
    before the export is loaded. The reports:
    [verl issue 7834](https://github.com/verl-project/verl/issues/7834) and
    [accelerate pull request 3154](https://github.com/huggingface/accelerate/pull/3154). In torch 2.13, `to_empty` of a
    model that FSDP2 has sharded keeps the tie, and FSDP2 refuses a tied weight in two units. Torch 2.11 accepts it,
    and the second unit is silently wrong.
    """)


@exercise
def train(
    make_model: Callable[[], nn.Module], checkpoint: dict[str, Tensor], batches: list[Tensor]
) -> tuple[list[float], dict[str, Tensor]]:
    """Train the tied model from `checkpoint`, and return the loss of each batch, and the export.

    The model is made on the meta device, because each rank loads its values. The export is the
    state dict without `head.weight`, which is `embedding.weight`.
    """
    with torch.device("meta"):
        model = make_model()
    model.to_empty(device="cpu")
    model.head.weight = model.embedding.weight
    model.load_state_dict(checkpoint)
    engine = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(engine.parameters(), lr=0.1)
    losses = []
    for tokens in batches:
        scores = engine(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    export = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    return losses, export


TIE = "model.head.weight = model.embedding.weight\n"
META = 'with torch.device("meta"):\n    model = make_model()\n'
EMPTY = 'model.to_empty(device="cpu")\n'
LOAD = "model.load_state_dict(checkpoint)\n"
OPTIMIZER = "optimizer = torch.optim.Adam(engine.parameters(), lr=0.1)\n"
EXPORT = 'export = {name: value for name, value in model.state_dict().items() if name != "head.weight"}\n'

exercise.start_edit({TIE: ""})

exercise.edit("two-weights", {TIE: "", EMPTY: TIE + EMPTY}, """
    The head and the embedding are two parameters while you train. They start with the same numbers, and each learns
    from its own part of the gradient; the export has one of them.
    Next: count the parameters after each line, and find the line that makes one more.""")

exercise.edit("exports-the-head-too", {TIE: "", EXPORT: "export = dict(model.state_dict())\n"}, """
    Your export has the head's weight as well. A server ties the head, so whichever is read last replaces the other,
    and the training is still that of two weights. Next: train one weight.""")

exercise.edit("exports-the-head-instead", {TIE: "", EXPORT: EXPORT
    + 'export["embedding.weight"] = model.head.weight.detach()\n'}, """
    You export the head's weight under the embedding's name. Now the embedding that was trained is lost.
    Next: train one weight, so that there is nothing to choose.""")

exercise.edit("ties-before-the-export", {TIE: "", EXPORT: TIE + EXPORT}, """
    You tie after the training. What the head has learned is dropped there; the losses are still those of two weights.
    Next: tie before the first step.""")

exercise.edit("the-mean-of-both", {TIE: "", EXPORT: EXPORT
    + 'export["embedding.weight"] = (model.embedding.weight.detach() + model.head.weight.detach()) / 2\n'}, """
    You export the mean of two weights that were trained apart. One weight would have received both gradients, in every
    step. Next: train one weight.""")

exercise.edit("adds-up-both-gradients", {TIE: "", "optimizer.step()\n":
    "both = model.head.weight.grad + model.embedding.weight.grad\n"
    "model.head.weight.grad, model.embedding.weight.grad = both, both.clone()\noptimizer.step()\n"}, """
    Both weights move by the sum of their gradients. The numbers are right, with two weights, two gradients and twice
    the optimizer state, as long as nobody adds a line that changes only one. Next: make them one parameter.""")

exercise.edit("copies-after-each-step", {TIE: "", "optimizer.step()\n":
    "optimizer.step()\nmodel.head.weight.data.copy_(model.embedding.weight.data)\n"}, """
    You copy the embedding into the head after each step. They stay equal, and the head's gradient is thrown away: one
    parameter would get the sum of both. Next: make them one parameter.""")

exercise.edit("head-is-frozen", {TIE: "model.head.weight.requires_grad_(False)\n"}, """
    The head does not learn at all. It keeps the checkpoint's weight, and the export has a trained embedding that the
    head never saw. Next: make them one parameter.""")

exercise.edit("ties-after-the-optimizer", {TIE: "", OPTIMIZER: OPTIMIZER + TIE}, """
    The engine was made for two parameters. It waits for a gradient of the head's old weight, which the model does not
    use any more. Next: tie before the engine and the optimizer are made.""")

exercise.edit("one-memory-two-parameters", {TIE: "", LOAD: "model.load_state_dict(checkpoint, assign=True)\n"}, """
    Embedding and head share their memory now, but they are still two parameters: each has part of the gradient and
    moments of its own, and both write into the same numbers. `assign=True` and `.data = ...` do that.
    Next: give both modules the same parameter, after the last line that makes parameters.""")


@exercise.variant
def ties_the_other_way(make_model: Any, checkpoint: Any, batches: Any) -> Any:
    with torch.device("meta"):
        model = make_model()
    model = model.to_empty(device="cpu")
    model.load_state_dict(checkpoint)
    model.embedding.weight = model.head.weight
    engine = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for tokens in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(engine(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    export = model.state_dict()
    del export["head.weight"]
    return losses, export


exercise.variant_edit("not-on-the-meta-device", {META: "model = make_model()\n", EMPTY: "", TIE: ""})

exercise.variant_edit("assigned-and-tied", {EMPTY: "", TIE: "", LOAD: "model.load_state_dict(checkpoint, assign=True)\n"
    + TIE})
