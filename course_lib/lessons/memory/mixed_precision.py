"""The widths of an unknown optimizer's state, found from measured totals."""

import random
from collections.abc import Callable

from ...exercises import Case, Exercise

OPTIMIZERS = (
    # name, bytes of a parameter, bytes kept for an element, a block of 256 elements, a row or column, a tensor
    ("Adam", 4, 8, 0, 0, 4),
    ("Adafactor", 4, 0, 0, 4, 4),
    ("8-bit Adam", 2, 2, 8, 0, 4),
    ("Adam with masters", 2, 12, 0, 0, 4),
    ("Adafactor with masters and momentum", 2, 8, 0, 4, 4),
)


def measurement(param: int, element: int, block: int, line: int, tensor: int) -> Callable[[int, int], int]:
    """Return the function that measures a matrix; its widths are as in `OPTIMIZERS`."""

    def total(rows: int, columns: int) -> int:
        numel = rows * columns
        return (2 * param + element) * numel + block * -(-numel // 256) + line * (rows + columns) + tensor

    return total


def draw(rng: random.Random, number: int) -> Case:
    name, *widths = OPTIMIZERS[number % len(OPTIMIZERS)]
    if number >= len(OPTIMIZERS):
        name, widths = "an invented optimizer", [rng.choice([2, 4]), *(rng.randint(1, 9) for _ in range(4))]
    what = f"{name}, parameters of {widths[0]} bytes"
    return Case(world_size=0, args=lambda rank: (measurement(*widths), widths[0]), what=what)


exercise = Exercise("memory.mixed_precision", title="An unknown optimizer", draw=draw, task="""
    You can measure only totals: `total(rows, columns)` makes a matrix of that shape, trains it for one step, and
    returns the bytes of its parameters, its gradients and everything that the optimizer keeps. Parameters and gradients
    take `param_bytes` for each element. Return what the optimizer keeps, in a dict: `"element"` for each element,
    `"line"` for each row and each column, and `"tensor"` for the whole matrix. Call `total` as often as you like. An
    8-bit optimizer also keeps scales for each block of 256 elements, even if the last block is not full. Count the
    scales as part of the elements, as in large matrices, where all blocks are full.""", hints="""
    The total mixes three unknown numbers. Which two matrices differ in only one of them?

    Subtract the parameters and the gradients first. Two matrices with the same number of elements and different shapes
    differ only in their rows and columns. If you know the bytes of a line, two different sizes show the bytes of an
    element. The rest belongs to the tensor.

    `total(256, 256)` and `total(64, 1024)` have 65,536 elements each, and 512 and 1,088 lines. `total(512, 512)` has
    more elements. All of them fill whole blocks.

    ```python
    square, flat, large = kept(256, 256), kept(64, 1024), kept(512, 512)
    line = (flat - square) / (1088 - 512)
    element = (large - square - 512 * line) / ...
    ```
    """, explanation="""
    Change one thing at a time, and a difference of totals shows its cost. What does not change, such as a step count,
    cancels. Adam keeps 8 bytes for each element, and 12 with masters in fp32. 8-bit Adam keeps 2 + 8/256 = 2.03:
    two bytes, and two float32 scales for each 256 elements. Adafactor keeps 4 bytes for each row and each column, so
    next to nothing for each element. Many small tensors would hide this, because blocks that are not full and numbers
    for each tensor weigh more there.""")


@exercise
def state_widths(total: Callable[[int, int], int], param_bytes: int) -> dict[str, float]:
    """Return the bytes that an optimizer keeps for each "element", each "line" and each "tensor".

    `total(rows, columns)` measures a matrix after a step: its parameters and its gradients, of
    `param_bytes` for each element, and what the optimizer keeps. A line is a row or a column.
    Scales of blocks of 256 elements count as part of the elements; fill whole blocks.
    """

    def kept(rows: int, columns: int) -> int:
        return total(rows, columns) - 2 * param_bytes * rows * columns

    square, flat, large = kept(256, 256), kept(64, 1024), kept(512, 512)
    line = (flat - square) / (64 + 1024 - 512)  # as many elements, and more lines
    element = (large - square - 512 * line) / (512 * 512 - 256 * 256)
    return {"element": element, "line": line, "tensor": square - 256 * 256 * element - 512 * line}


exercise.edit("nothing-subtracted", {"- 2 * param_bytes * rows * columns": ""}, """
    Your widths contain the parameters and the gradients: `2 * param_bytes` too many for each element. They exist with
    any optimizer. Next: subtract the bytes of both from each total.""")

exercise.edit("gradients-not-subtracted", {"2 * param_bytes": "param_bytes"}, """
    Your width of an element is too large by `param_bytes`. The total contains the parameters and, as large as these,
    the gradients. Next: subtract the bytes of both from each total.""")

exercise.edit("always-fp32", {"2 * param_bytes": "8"}, """
    You subtract 8 bytes for each element, even in 16 bits. There parameters and gradients take 2 + 2. Master weights
    are not among the parameters: they are part of what the optimizer keeps.
    Next: let what you subtract depend on `param_bytes`.""")

exercise.edit("everything-per-element", {"(flat - square) / (64 + 1024 - 512)": "0",
    "(large - square - 512 * line) / (512 * 512 - 256 * 256)": "square / (256 * 256)"}, """
    You divide all bytes of one matrix by its elements. This spreads a step count, and the numbers for rows and columns,
    over the elements. Next: measure two sizes, and divide the difference of bytes by the difference of elements.""")

exercise.edit("columns-only", {"64 + 1024 - 512": "1024 - 256"}, """
    You divide by the difference of the columns only, or of the rows only. If one grows, the other shrinks, and a row
    counts like a column.
    Next: divide by the difference of rows + columns.""")

exercise.edit("lines-in-elements", {"(large - square - 512 * line)": "(large - square)"}, """
    Your width of an element contains lines: a larger matrix also has more rows and columns.
    Next: subtract the bytes of the additional lines before you divide by the additional elements.""")

exercise.edit("tiny-matrices", {"kept(256, 256), kept(64, 1024), kept(512, 512)":
    "kept(4, 4), kept(2, 8), kept(8, 8)", "64 + 1024 - 512": "2 + 8 - 8", "square - 512 * line": "square - 8 * line",
    "512 * 512 - 256 * 256": "64 - 16", "square - 256 * 256 * element - 512 * line":
    "square - 16 * element - 8 * line"}, """
    Your widths count the scales of one block as bytes of the tensor. A matrix of fewer than 256 elements does that,
    because its block is not full. In one full block, rounding does it: an element has only a fraction of a scale.
    Next: measure matrices whose numbers of elements are multiples of 256, and divide without rounding.""")

NOT_FULL = """
    Your matrices do not fill whole blocks: neither 100 * 100 nor 1000 * 1000 is a multiple of 256. The last block has
    all its scales for a part of 256 elements. Next: measure matrices whose numbers of elements are multiples of 256.
    """

exercise.edit("sides-of-1000", {"kept(256, 256), kept(64, 1024), kept(512, 512)":
    "kept(1000, 1000), kept(500, 2000), kept(2000, 2000)", "64 + 1024 - 512": "500 + 2000 - 2000",
    "square - 512 * line": "square - 2000 * line", "512 * 512 - 256 * 256": "2000 * 2000 - 1000 * 1000",
    "square - 256 * 256 * element - 512 * line": "square - 1000 * 1000 * element - 2000 * line"}, NOT_FULL)

exercise.edit("sides-of-100", {"kept(256, 256), kept(64, 1024), kept(512, 512)":
    "kept(100, 100), kept(50, 200), kept(200, 200)", "64 + 1024 - 512": "50 + 200 - 200",
    "square - 512 * line": "square - 200 * line", "512 * 512 - 256 * 256": "200 * 200 - 100 * 100",
    "square - 256 * 256 * element - 512 * line": "square - 100 * 100 * element - 200 * line"}, NOT_FULL)

exercise.edit("rounded-down", {"line) / (512": "line) // (512"}, """
    Your width of an element is a whole number. A scale is shared by 256 elements, so each element has a fraction of its
    bytes. Next: divide without rounding.""")


@exercise.variant
def three_squares(total: Callable[[int, int], int], param_bytes: int) -> dict[str, float]:
    kept = [total(n, n) - 2 * param_bytes * n * n for n in (256, 512, 768)]
    element = (kept[2] - 2 * kept[1] + kept[0]) / (2 * 256**2)
    line = (kept[1] - kept[0] - element * (512**2 - 256**2)) / (2 * 256)
    return {"tensor": kept[0] - element * 256**2 - line * 512, "line": line, "element": element}


@exercise.variant
def long_matrices(total: Callable[[int, int], int], param_bytes: int) -> dict[str, float]:
    line = (total(1, 2**20) - total(2, 2**19)) / (2**20 + 1 - 2**19 - 2)
    element = (total(4, 2**20) - total(4, 2**19) - line * 2**19) / (4 * 2**19)
    tensor = total(256, 1) - 256 * element - 257 * line
    return {"element": round(element - 2 * param_bytes, 5), "line": round(line), "tensor": round(tensor)}
