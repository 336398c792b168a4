"""`course plan`: what a training would hold, send and take, and the search for a way that fits."""

import argparse
import json
import re
from collections.abc import Iterator
from itertools import product
from math import inf
from typing import Any

from .. import planner
from ..errors import CourseError
from ..planner import HARDWARE, MODELS, Hardware, Plan
from ..planner.spelling import SETTINGS, command, flag, flags, number, read


def run(options: argparse.Namespace) -> None:
    """Print a plan, or several that differ in what is given twice, or the best that fits.

    Raises:
        CourseError: there is no such model, hardware or value, or settings do not go together, or nothing fits.
    """
    what, words = _model(options)
    texts = {name: getattr(options, name) for name in SETTINGS if getattr(options, name)}
    given = {name: [read(name, text) for text in values] for name, values in texts.items()}
    gpu = _nodes(options.gpu, max(given.get("world_size", [inf if options.tokens else 0])))
    machine, searches = HARDWARE[gpu], options.fit or options.tokens
    known = planner.plan(**what, sequence=1).model.transformer
    usual: dict[str, Any] = {"sequence": min(4096, known.context if known else 4096), "attention": "flash"}
    usual |= ({} if searches else {"stage": 3}) | ({} if options.tokens else {"world_size": machine.devices})
    usual = {name: value for name, value in usual.items() if name not in given}
    print(f"Assumed, as you gave nothing else: {' '.join(['--gpu', gpu, *flags(usual)])}\n")
    settings = usual | {name: values[0] for name, values in given.items()}
    if twice := {name: values for name, values in given.items() if len(values) > 1}:
        if searches:
            raise CourseError(
                f"{flag(min(twice))} twice: a search varies what you leave out. Give it once or not at all."
            )
        return print(*_compared(what, settings, twice, machine), sep="\n")
    planned = _found(options, what, machine, settings) if searches else planner.plan(**what, **settings)
    print(*planner.page(planned, machine), f"At most: {'; '.join(_most(planned, machine))}.", sep="\n\n")
    if searches:
        print(f"\nAgain: {command(words, gpu, vars(planned.settings))}")
    if options.why:
        print("", planned.explain(machine).partition("\n\n")[2], *planner.units(planned), sep="\n")


def _model(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the model for `plan`, and the words of the command that name it."""
    name = options.model or options.params or options.config
    if [options.model, options.params, options.config].count(None) != 2:
        raise CourseError("name one model: a name, such as llama3-8b, or --params 7e9, or --config config.json.")
    if options.config:
        try:
            config = json.loads(name.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise CourseError(f"--config {name}: {error}. Name a model's config.json.") from error
        return {"model": planner.Transformer.from_config(config)}, ["--config", str(name)]
    if options.params or re.fullmatch(r"[\d.]+(e\d+|[mbt])", name, re.IGNORECASE):
        return {"params": number("--params", name)}, ["--params", name]
    plain = {_plain(text): key for key, model in MODELS.items() for text in (key, model.name)}
    return {"model": plain.get(_plain(name), name)}, [name]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().rpartition("/")[2])


def _nodes(gpu: str, ranks: float) -> str:
    """Return the name of the hardware, or of several such nodes if one has too few devices."""
    one = planner.hardware(gpu)
    many = (name for name, far in HARDWARE.items() if far.network and name.startswith(f"{gpu}-")
            and far.memory_bytes == one.memory_bytes)  # fmt: skip
    return gpu if one.network or ranks <= one.devices else next(many, gpu)


def _found(options: argparse.Namespace, what: Any, machine: Hardware, settings: dict[str, Any]) -> Plan:
    (model,) = what.values()
    if options.tokens:
        most = {"most_ranks": settings.pop("world_size")} if "world_size" in settings else {}
        tokens, days = number("--tokens", options.tokens), number("--days", options.days)
        budget = planner.cheapest(model, machine, tokens=tokens, days=days, **most, **settings)
        print(f"{budget}\n")
        return budget.plan
    batch: Any = {"global_batch": number("--global-batch", options.global_batch)} if options.global_batch else {}
    choice = planner.choose(model, machine, **batch, **settings)
    best, lines = choice.best, str(choice).splitlines()
    print(*(lines if options.why else [*lines[:7], f"... of {len(lines) - 1}; --why prints all."]), "", sep="\n")
    return best.plan


def _compared(what: Any, settings: Any, twice: dict[str, list[Any]], machine: Hardware) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("", "peak", "sent", *planner.COSTS)]
    refusals = []
    for values in product(*twice.values()):
        chosen = dict(zip(twice, values, strict=True))
        try:
            one = planner.plan(**what, **settings | chosen)
            held = planner.size(one.peak_bytes), planner.size(one.sent_bytes)
            rows.append((" ".join(flags(chosen)), *held, *planner.costs(one, machine)))
        except CourseError as refusal:
            refusals.append(f"{' '.join(flags(chosen))}: {refusal}")
    yield from (planner.aligned(rows), *refusals)


def _most(planned: Plan, machine: Hardware) -> Iterator[str]:
    if planned.model.transformer:
        yield f"{planner.largest_batch(planned, machine)} sequences in a micro-batch"
        yield f"{planner.longest_sequence(planned, machine)} tokens in a sequence"
    ranks = planner.fewest_ranks(planned, machine)
    yield f"it fits on {ranks} GPU{'s' * (ranks > 1)} or more" if ranks else "it fits on no number of GPUs"
