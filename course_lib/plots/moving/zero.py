"""The bytes of model states on each GPU, in the four stages, on 1 to 1,024 GPUs."""

from functools import cache

from ...planner import hardware, plan
from ..canvas import CATEGORIES
from .figure import Control, Moving
from .shapes import Shape, Still, filled, text

PARAMS, DEVICE = 7.5e9, "h100"
STATES = {"parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer state"}
SHARDED = ("nothing", "the optimizer state", "gradients too", "parameters too")
NAMES = ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")
TOP, ROW, BAR = 116, 62, 26


def move_zero(stage: int = 0) -> Moving:
    """Return the bytes that each GPU holds of a model's states: stages as buttons, the number of GPUs as a slider.

    The model is that of the ZeRO paper's figure 1: 7.5 billion parameters, Adam, mixed precision.

    Args:
        stage: the one that is chosen at first.
    """
    device = hardware(DEVICE).memory_bytes

    @cache
    def held(chosen: int, gpus: int) -> dict[str, int]:
        moments = plan(params=PARAMS, world_size=gpus, stage=chosen, precision="mixed").moments["optimizer step"]
        return {state: moments[state] for state in STATES}

    def total(chosen: int, gpus: int) -> int:
        return sum(held(chosen, gpus).values())

    most = total(0, 1)
    limit = device / most

    def frame(chosen: int) -> Still:
        lit = TOP + chosen * ROW
        return [
            Shape("lit", -0.02, lit - 25, 1.04, ROW - 4, "shade"),
            Shape("edge", -0.02, lit - 25, 0.006, ROW - 4, "line"),
        ]

    def bars(gpus: int) -> Still:
        shapes = []
        for each in range(4):
            y, x = TOP + each * ROW, 0.0
            shapes.append(text(f"stage {each}", 0, y - 7, "title", f"stage {each} · shards {SHARDED[each]}"))
            shapes.append(text(f"total {each}", 1, y - 6, "value", gigabytes(total(each, gpus)), "end"))
            for state, nbytes in held(each, gpus).items():
                shapes.append(Shape(f"{state} {each}", x, y, nbytes / most, BAR, state))
                x += nbytes / most
            shapes.append(Shape(f"limit {each}", limit - 0.0015, y - 5, 0.003, BAR + 10, "line"))
        shapes.append(text("limit", limit, TOP + 4 * ROW - 8, "note", f"an H100 has {device / 1e9:.0f} GB", "middle"))
        return shapes

    def number(chosen: int, gpus: int) -> Still:
        on = f"on each of {gpus:,} GPUs" if gpus > 1 else "on one GPU"
        big = gigabytes(total(chosen, gpus))
        return [text("big", 0, 40, "big", big), text("on", 0, 66, "word", on)]

    def caption(chosen: int, gpus: int) -> str:
        nbytes = total(chosen, gpus)
        fits = "They fit in" if nbytes <= device else "They do not fit in"
        return (
            f"Stage {chosen} ({NAMES[chosen]}) on {gpus:,} GPU{'s' * (gpus > 1)}: each holds {gigabytes(nbytes)} of "
            f"parameters, gradients and optimizer state. {fits} the {device / 1e9:.0f} GB of an H100."
        )

    counts = {f"{2**power:,}": 2**power for power in range(11)}
    lines = (
        f"{gpus:,} GPUs: " + ", ".join(f"stage {each} {gigabytes(total(each, gpus))}" for each in range(4))
        for gpus in counts.values()
    )
    return Moving(
        title="What each GPU holds, by ZeRO stage and number of GPUs",
        controls={
            "stage": Control(label="ZeRO stage", values={str(each): each for each in range(4)}, start=stage),
            "gpus": Control(label="GPUs", values=counts, start=6, slider=True),
        },
        layers=[(["stage"], frame), (["gpus"], bars), (["stage", "gpus"], number)],
        caption=(["stage", "gpus"], caption),
        looks=filled({state: CATEGORIES[state] for state in STATES}),
        legend=STATES,
        text="\n".join(lines),
        height=TOP + 4 * ROW,
    )


def gigabytes(nbytes: float) -> str:
    """Return bytes in GB, always in the same unit, so that a number can count: `31.4 GB`."""
    return f"{nbytes / 1e9:.1f}".removesuffix(".0") + " GB"
