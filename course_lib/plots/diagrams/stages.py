"""The figure of the ZeRO paper: what each rank holds of parameters, gradients and optimizer state, by stage."""

from typing import Any

from ...planner import how, plan, size
from ..canvas import CATEGORIES, COMPUTE, FAINT, INK, SMALL, WIDTH, Canvas
from ..picture import Picture

STATES = ("parameters", "gradients", "optimizer")
NAMES = ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")
LEFT, RIGHT, TALL, LEAST = 110, 170, 70, 12


def plot_zero(params: Any = None, *, model: Any = None, world_size: int, **given: Any) -> Picture:
    """Return the bytes of model states on each rank, in the four stages.

    Args:
        params, model, given: as for `plan`, without `stage`.
        world_size: the number of ranks. Up to four are drawn; of more, the first two and the last.

    Example:
        >>> plot_zero(7.5e9, world_size=64)
    """
    plans = [plan(params, model=model, world_size=world_size, stage=stage, **given) for stage in range(4)]
    held = [{state: planned.moments["optimizer step"][state] for state in STATES} for planned in plans]
    canvas = Canvas()
    ranks = list(range(world_size)) if world_size <= 4 else [0, 1, world_size - 1]
    column = (WIDTH - LEFT - RIGHT) / len(ranks)
    canvas.legend(((state, CATEGORIES[state]) for state in STATES), LEFT)
    canvas.y += 14
    for at, rank in enumerate(ranks):
        canvas.text(LEFT + (at + 0.5) * column - 8, canvas.y, f"rank {rank}", "middle", fill=FAINT)
    if world_size > 4:
        canvas.text(LEFT + 2 * column - 8, canvas.y, "…", "middle", fill=FAINT)
    canvas.text(WIDTH - RIGHT, canvas.y, "bytes on each rank", fill=FAINT)
    canvas.y += 8
    for stage, states in enumerate(held):
        for at, rank in enumerate(ranks):
            _draw_states(canvas, LEFT + at * column, column - 16, states, held[0], rank, world_size)
        _draw_total(canvas, stage, states, held[0])
        canvas.y += TALL + 16
    canvas.y -= 16
    totals = [size(sum(states.values())) for states in held]
    caption = (
        f"{plans[0].model.params:,} parameters on {how(plans[0].settings).partition(' on ')[2]}. A filled part is "
        f"held; an empty part is on other ranks. Each stage shards one more state: {totals[0]} on each rank become "
        f"{totals[1]}, {totals[2]} and {totals[3]}."
    )
    return canvas.picture(caption, "\n".join(map(_line, range(4), held)))


def _draw_states(
    canvas: Canvas, left: float, width: float, held: dict[str, int], whole: dict[str, int], rank: int, world_size: int
) -> None:
    """Draw a band for each state, as high as its bytes in stage 0, and fill the part that the rank holds."""
    free, y = TALL - LEAST * len(STATES), canvas.y
    for state in STATES:
        height = LEAST + free * whole[state] / sum(whole.values())
        canvas.rect(left, y, width, height - 2, "none", stroke=FAINT, stroke_width=0.5)
        part = width * held[state] / whole[state] if whole[state] else 0.0
        start = rank * width / world_size if held[state] < whole[state] else 0.0
        label = size(held[state]) if part == width else ""
        canvas.block(left + start, y, max(part, 4.0), height - 2, CATEGORIES[state], label)
        y += height


def _draw_total(canvas: Canvas, stage: int, held: dict[str, int], whole: dict[str, int]) -> None:
    total, most = sum(held.values()), sum(whole.values())
    canvas.text(0, canvas.y + 22, f"stage {stage}", font_weight="bold")
    canvas.text(0, canvas.y + 38, NAMES[stage], **SMALL)
    canvas.text(WIDTH - RIGHT, canvas.y + 28, size(total), font_size=18, font_weight="bold")
    canvas.rect(WIDTH - RIGHT, canvas.y + 38, RIGHT * total / most, 8, COMPUTE)
    canvas.line(WIDTH - RIGHT, canvas.y + 34, WIDTH - RIGHT, canvas.y + 50, INK)


def _line(stage: int, held: dict[str, int]) -> str:
    parts = ", ".join(f"{state} {size(nbytes)}" for state, nbytes in held.items())
    return f"stage {stage}, {NAMES[stage]}: {size(sum(held.values()))} on each rank: {parts}"
