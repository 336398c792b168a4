"""The bytes of model states on each GPU, in the four stages, on 1 to 1,024 GPUs."""

from ...planner import hardware, plan
from ..canvas import CATEGORIES
from .figure import Control, Moving
from .shapes import Shape, Still, filled, text

PARAMS, DEVICE = 7.5e9, "h100"
STATES = {"parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer state"}
NAMES = ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")
SHARDED = ("nothing", "optimizer state", "gradients too", "parameters too")
TOP, ROW, BAR = 116, 62, 26


def move_zero(stage: int = 0) -> Moving:
    """Return the bytes that each GPU holds of a model's states: stages as buttons, the number of GPUs as a slider.

    The model is that of the ZeRO paper's figure 1: 7.5 billion parameters, Adam, mixed precision.

    Args:
        stage: the one that is chosen at first.
    """
    return Moving(
        title="What each GPU holds, by ZeRO stage and number of GPUs",
        controls={
            "stage": Control("ZeRO stage", range(4), stage),
            "gpus": Control("GPUs", [2**power for power in range(11)], 6),
        },
        layers=[(["stage"], _lit), (["gpus"], _bars), (["stage", "gpus"], _number)],
        caption=(["stage", "gpus"], _caption),
        looks=filled({state: CATEGORIES[state] for state in STATES}),
        legend=STATES,
        height=TOP + 4 * ROW,
    )


def _held(stage: int, gpus: int) -> dict[str, int]:
    moments = plan(params=PARAMS, world_size=gpus, stage=stage, precision="mixed").moments["optimizer step"]
    return {state: moments[state] for state in STATES}


def _total(stage: int, gpus: int) -> str:
    """Return bytes in GB, always in the same unit, so that a number can count: `31.4 GB`."""
    return f"{sum(_held(stage, gpus).values()) / 1e9:.1f}".removesuffix(".0") + " GB"


def _lit(stage: int) -> Still:
    y, h = TOP + stage * ROW - 25, ROW - 4
    return [Shape("lit", -0.02, y, 1.04, h, "shade"), Shape("edge", -0.02, y, 0.006, h, "line")]


def _bars(gpus: int) -> Still:
    device, most = hardware(DEVICE).memory_bytes, sum(_held(0, 1).values())
    limit = device / most
    still = [text("limit", limit, TOP + 4 * ROW - 8, "note", f"an H100 has {device / 1e9:.0f} GB", "middle")]
    for stage, shards in enumerate(SHARDED):
        y, x = TOP + stage * ROW, 0.0
        still.append(text(f"stage {stage}", 0, y - 7, "title", f"stage {stage} shards {shards}"))
        still.append(text(f"total {stage}", 1, y - 6, "value", _total(stage, gpus), "end"))
        for state, nbytes in _held(stage, gpus).items():
            still.append(Shape(f"{state} {stage}", x, y, nbytes / most, BAR, state))
            x += nbytes / most
        still.append(Shape(f"limit {stage}", limit - 0.0015, y - 5, 0.003, BAR + 10, "line"))
    return still


def _number(stage: int, gpus: int) -> Still:
    on = f"on each of {gpus:,} GPUs" if gpus > 1 else "on one GPU"
    return [text("big", 0, 40, "big", _total(stage, gpus)), text("on", 0, 66, "word", on)]


def _caption(stage: int, gpus: int) -> str:
    device = hardware(DEVICE).memory_bytes
    fits = "They fit in" if sum(_held(stage, gpus).values()) <= device else "They do not fit in"
    return (
        f"Stage {stage} ({NAMES[stage]}) on {gpus:,} GPU{'s' * (gpus > 1)}: each holds {_total(stage, gpus)} of "
        f"parameters, gradients and optimizer state. {fits} the {device / 1e9:.0f} GB of an H100."
    )
