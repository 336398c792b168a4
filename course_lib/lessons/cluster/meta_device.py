"""Build a model on the meta device, shard it, and fill the shards."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ...exercises import Case, Exercise, Finding, Solution, Trial, lets_go
from ...meter import mark

LAYERS, WIDTH = 6, 16
LAYER_BYTES = 4 * WIDTH * WIDTH
WHOLE_BYTES = LAYERS * LAYER_BYTES
READ, FILLED = "at the last read", "once the shards are filled"


def draw(rng: random.Random, number: int) -> Case:
    world_size, largest = 2 + number % 3, rng.randint(1, 9)
    what = f"{LAYERS} layers of {LAYER_BYTES:,} bytes"
    return Case(world_size=world_size, args=lambda rank: (largest,), what=what)


class Layers(nn.Sequential):
    """A model whose memory is NaN before it is filled."""

    def to_empty(self, *args: Any, **options: Any) -> "Layers":
        super().to_empty(*args, **options)
        with torch.no_grad():
            for param in self.parameters():
                param.fill_(float("nan"))
        return self


def filled(solution: Solution, largest: int) -> dict[str, Any]:
    """Return the shards, and the model's output, which shows that the units can be gathered."""
    seen: dict[str, Any] = {}
    shapes: dict[str, torch.Size] = {}

    def make() -> nn.Module:
        model = Layers(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        model.scale = nn.Parameter(torch.ones(WIDTH))
        shapes.update((name, param.shape) for name, param in model.named_parameters())
        seen["the device on which the model is built"] = model.scale.device.type
        return model

    def read(name: str) -> Tensor:
        tensor = torch.linspace(-ord(name[0]), largest, shapes[name].numel()).view(shapes[name])
        mark(READ)
        return tensor

    model = solution(make, read)
    mark(FILLED)
    seen["the units"] = [name or "the model" for name, part in model.named_modules() if isinstance(part, FSDPModule)]
    for name, param in model.named_parameters():
        seen[f"the shard of {name}"] = param.to_local().clone() if isinstance(param, DTensor) else param
        seen[f"whether {name} requires a gradient"] = param.requires_grad
    return seen | {"the output": model(torch.ones(1, WIDTH)).detach()}


def never_whole(trial: Trial) -> Iterator[Finding]:
    """Require that no rank ever holds more than the reference does, and one layer."""
    for rank, (yours, expected) in enumerate(zip(trial.yours.memory, trial.expected.memory, strict=True)):
        held, allowed = yours.marks[FILLED].peak_bytes, expected.marks[FILLED].peak_bytes + LAYER_BYTES
        if held > allowed:
            yield Finding(
                observed=f"rank {rank} held up to {held:,} bytes; {allowed:,} suffice. "
                f"All layers together have {WHOLE_BYTES:,}.",
                action="Find the line after which this rank holds too much, in a model or in a list of tensors.",
            )
            break


exercise = Exercise("cluster.meta_device", title="A model that is never whole", draw=draw, trial=filled, measured=True,
    inputs_matter=False, case_count=2, rules=[lets_go(READ, slack=LAYER_BYTES), never_whole], task="""
    `make()` builds the model, and `read(name)` reads one whole tensor of a checkpoint. Return the model, sharded with
    FSDP2 and filled from the checkpoint. Each child of the model is a unit, and the model itself has a parameter, too.
    A rank may hold its shards, and at any moment one or two whole tensors, but never the model; the check measures the
    bytes.""", hints="""
    A model has 70 billion parameters, and 8 ranks on one machine build it in fp32. How many bytes is that, before
    anything is sharded?

    A tensor on the meta device has a shape and no memory. Shard the model there; then only shards need memory. Fill
    them from one tensor at a time.

    `with torch.device("meta")`, `fully_shard(unit)`, `model.to_empty(device=...)`, `model.state_dict()`,
    `distribute_tensor(tensor, shard.device_mesh, shard.placements)`.

    ```python
    with torch.device("meta"):
        model = ...
    for unit in [*model.children(), model]:
        ...
    model.to_empty(device=torch.get_default_device())
    for name, shard in model.state_dict().items():
        shard.copy_(distribute_tensor(...))
    ```
    """, explanation="""
    On the meta device, a model of any size costs no memory, and `fully_shard` cuts shapes. `to_empty` then allocates
    the shards, with undefined values, so every parameter must be filled. `distribute_tensor` cuts a tensor in the way
    in which the parameter is cut; with `src_data_rank=None`, each rank takes its part of its own tensor, and sends
    nothing. To train from the start, call the model's own function for its first weights instead, such as
    `init_weights()`. Each layer's `reset_parameters()` gives torch's usual values: what the model's `__init__` had
    chosen is lost on the meta device, without an error. `to_empty` leaves buffers undefined as well, and `state_dict()`
    lacks those that are not persistent: fill them too. `zero.Stage3` takes a model on the meta device, and fills it
    unit by unit.""")


@exercise
def shard_from_meta(make: Callable[[], nn.Module], read: Callable[[str], Tensor]) -> nn.Module:
    """Return the model that `make()` builds, sharded with FSDP2 and filled with the tensors that `read` reads.

    Each child is a unit, and the model is the last one. `read(name)` returns the whole tensor for the
    parameter of this name. This rank holds its shards and one or two tensors, never the whole model.
    """
    with torch.device("meta"):
        model = make()
    for unit in [*model.children(), model]:
        fully_shard(unit)
    model.to_empty(device=torch.get_default_device())
    for name, shard in model.state_dict().items():
        shard.copy_(distribute_tensor(read(name), shard.device_mesh, shard.placements, src_data_rank=None))
    return model


EMPTY = "model.to_empty(device=torch.get_default_device())\n"
SHARD = "for unit in [*model.children(), model]:\n    fully_shard(unit)\n"
CUT = "distribute_tensor(read(name), shard.device_mesh, shard.placements, src_data_rank=None)"

exercise.edit("builds-the-whole", {'with torch.device("meta"):\nmodel': "model", EMPTY: ""}, """
    Every rank builds the whole model before it is sharded. With a model that is larger than one GPU, this line fails.
    Next: build it on the meta device, where tensors have no memory.""")

exercise.edit("memory-before-shards", {SHARD: "", EMPTY: EMPTY + SHARD}, """
    Your model gets memory before it is sharded, so for a moment every rank holds room for the whole model.
    Next: shard the model on the meta device, and call `to_empty` afterwards.""")

exercise.edit("fills-before-shards", {SHARD: "", CUT: "read(name)", "return model": SHARD + "return model"}, """
    Your model gets memory and is filled before it is sharded, so every rank holds the whole model.
    Next: shard the model on the meta device. Then call `to_empty`, and fill the shards.""")

exercise.edit("reads-all-first", {"read(name)": "tensors[name]",
    EMPTY: f"{EMPTY}tensors = {{name: read(name) for name in model.state_dict()}}\n"}, """
    The model is sharded, but every rank holds all tensors of the checkpoint at once.
    Next: read one tensor, fill its shard, and let go of the tensor before you read the next.""")

exercise.edit("not-filled", {f"shard.copy_({CUT})": CUT}, """
    The shards do not have the values that `read` returns.
    Next: cut each tensor that `read` returns, and copy your part into the shard.""")

exercise.edit("copies-a-plain-tensor", {CUT: "read(name)"}, """
    You copy a whole tensor into a DTensor. torch refuses this, because it cannot know how the tensor is to be cut.
    Next: cut it with `distribute_tensor`, for the parameter's mesh and placements.""")

exercise.edit("everywhere-the-first-rows", {f"shard.copy_({CUT})":
    "shard.to_local().copy_(read(name)[: len(shard.to_local())])"}, """
    Every rank fills its shard with the first rows of the tensor. The shard of rank 1 begins where that of rank 0 ends.
    Next: take this rank's part, or let `distribute_tensor` cut it.""")

exercise.edit("one-unit", {"[*model.children(), model]": "[model]"}, """
    The model is one unit. Forward would gather all of its layers at once, and every rank would hold the whole model.
    Next: call `fully_shard` for each child first, and for the model last.""")

exercise.edit("children-only", {"[*model.children(), model]": "model.children()"}, """
    You shard the children only. A parameter of the model itself is in none of them, so it remains a plain parameter.
    Next: call `fully_shard` for the model as well, after its children.""")

exercise.edit("frozen", {"return model": "return model.requires_grad_(False)"}, """
    The parameters of your model require no gradient, so the model cannot be trained.
    Next: leave `requires_grad` as it is; fill shards under `torch.no_grad()` where torch asks for it.""")

exercise.variant_edit("the-mesh-scatters", {", src_data_rank=None": ""})

exercise.variant_edit("shards-as-a-state-dict", {EMPTY: "shards = {}\n",
    f"shard.copy_({CUT})": f"shards[name] = {CUT}", "return model":
    "model.load_state_dict(shards, assign=True)\nreturn model"})
