"""`course plan`: what a training would hold, send and take, and the search for a way that fits."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from itertools import product
from math import inf
from typing import Any

from .. import planner
from ..errors import CourseError
from ..planner import HARDWARE, MODELS, Hardware, Plan, Settings
from ..planner.explain import assumed, band, notes, sent
from ..planner.spelling import SETTINGS, as_options, command, flags, number, option, read
from ..planner.training.checks import PlanError


def run(options: argparse.Namespace) -> None:
    """Print a plan, or several that differ in what is given twice, or the best that fits.

    Raises:
        CourseError: there is no such model, hardware or value, or settings do not go together, or nothing fits.
    """
    try:
        for number, paragraph in enumerate(_answer(options)):
            print("\n" * (number > 0) + paragraph, flush=True)  # at once: a search takes seconds
    except PlanError as refusal:
        raise CourseError(as_options(str(refusal))) from refusal


def _answer(options: argparse.Namespace) -> Iterator[str]:
    """Yield paragraphs: what is assumed, then the plan or the plans."""
    what, words = _model(options)
    texts = {name: dict.fromkeys(values) for name in SETTINGS if (values := getattr(options, name))}  # each text once
    given = {name: [read(name, text) for text in values] for name, values in texts.items()}
    if len({*(options.gpu or [])}) > 1:
        raise CourseError("--gpu twice: a plan is for one kind of node. Run the command once for each.")
    named = options.gpu[0] if options.gpu else "h100"
    gpu = _nodes(named, max(given.get("world_size", [inf if options.tokens else 0])))
    machine, searches = HARDWARE[gpu], options.fit or options.tokens
    known = planner.plan(**what, sequence=1).model.transformer
    usual: dict[str, Any] = {"sequence": min(4096, known.context if known else 4096), "attention": "flash"}
    usual |= ({} if searches else {"stage": 3}) | ({} if options.tokens else {"world_size": machine.devices})
    usual = {name: value for name, value in usual.items() if name not in given}
    settings = usual | {name: values[0] for name, values in given.items()}
    twice = {name: values for name, values in given.items() if len(values) > 1}
    for name, needed in (("global_batch", "fit"), ("days", "tokens")):
        if getattr(options, name) and not getattr(options, needed):
            raise CourseError(f"{option(name)} without --{needed}: nothing else reads it. Give both.")
    if options.fit and options.tokens:
        raise CourseError("--fit and --tokens: each is a search of its own. Give one of the two.")
    if twice and searches:
        what_twice = option(min(twice))
        raise CourseError(f"{what_twice} twice: a search varies what you leave out. Give it once or not at all.")
    if twice and options.why:
        raise CourseError(f"--why with {option(min(twice))} twice: it explains one plan. Give each setting once.")
    planned = None if twice or searches else planner.plan(**what, **settings)
    if not searches:
        defaults = assumed(planned.settings if planned else Settings())
        usual |= {name: value for name, value in defaults.items() if name not in usual and name not in given}
    chosen = [] if options.gpu else ["--gpu", gpu]
    if assumptions := [*chosen, *flags(usual)]:
        yield f"Assumed, as you gave nothing else: {' '.join(assumptions)}"
    if options.gpu and not _same(gpu, _plain(named)):
        yield f"A node of --gpu {named} has {machine.devices} GPUs, so the plan is for several: --gpu {gpu}."
    if twice:
        yield "\n".join(_compared(what, settings, twice, machine))
        return
    if planned is None:
        if sys.stderr.isatty():
            print("\nSearching. This may take a minute.", file=sys.stderr)
        planned, found = _found(options, what, machine, settings)
        yield found
    head, _, *rest = planner.page(planned, machine)
    yield from (head, *map(as_options, rest), " ".join(_most(planned, gpu)))
    if options.why:
        yield planned.explain(machine).partition("\n\n")[2]
        yield "\n".join(planner.units(planned)).lstrip()
    if searches:
        yield f"Again: {command(words, gpu, vars(planned.settings))}"


def _model(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the model for `plan`, and the words of the command that name it."""
    names = [*([options.model] if options.model else ()), *(options.params or ()), *(options.config or ())]
    if len(names) != 1:
        raise CourseError("name one model: a name, such as llama3-8b, or --params 7e9, or --config config.json.")
    name = names[0]
    if options.config:
        try:
            config = json.loads(name.read_text("utf-8-sig"))
        except UnicodeDecodeError as error:
            text = f"--config {name}: it is not text in UTF-8. Name a model's config.json, and save it as UTF-8."
            raise CourseError(text) from error
        except (OSError, ValueError, RecursionError) as error:
            raise CourseError(f"--config {name}: {error}. Name a model's config.json.") from error
        return {"model": planner.Transformer.from_config(config)}, ["--config", str(name)]
    if options.params or re.fullmatch(r"[\d.]+(e\d+|[mbt])|\d{5,}", name, re.IGNORECASE):
        return {"params": number("--params", name)}, ["--params", name]
    plain = {_plain(text): key for key, model in MODELS.items() for text in (key, model.name)}
    shape = re.sub(r"^meta|(hf|instruct|chat|base|v0\.?\d)*$", "", _plain(name))  # other weights of the same shape
    shape = "llama370b" if shape == "llama3370b" else shape
    if shape not in plain:
        close = max(get_close_matches(shape, plain, n=5), key=lambda one: one[:6] == shape[:6], default=None)
        hint = f" The nearest by name is {plain[close]}." if close else ""
        raise CourseError(f"{name}: there is no model of this name.{hint} For any other, give --config config.json, or "
                          "the number of parameters, such as 7b. --help lists the names.")  # fmt: skip
    return {"model": plain[shape]}, [name]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().rpartition("/")[2])


def _same(name: str, typed: str) -> bool:
    """Return whether `h100sxm80gb` names this hardware: with words and the memory that it has anyway."""
    words = f"sxm[45]?|nvlink|hbm[23]?e?|{HARDWARE[name].memory_bytes // 10**9}gb"
    return bool(re.fullmatch(f"(nvidia|geforce|rtx)*{_plain(name).removeprefix('rtx')}({words})*", typed))


def _nodes(gpu: str, ranks: float) -> str:
    """Return the name of the hardware, or of several such nodes if one has too few devices."""
    gpu = next((name for name in HARDWARE if _same(name, _plain(gpu))), gpu)
    if gpu not in HARDWARE:
        raise CourseError(f"--gpu {gpu}: there is no such hardware. Choose one of {', '.join(HARDWARE)}. For a "
                          "different one, see docs/how-to/plan.md.")  # fmt: skip
    one = HARDWARE[gpu]
    many = (name for name, far in HARDWARE.items() if far.network and name.startswith(f"{gpu}-")
            and far.memory_bytes == one.memory_bytes)  # fmt: skip
    return gpu if one.network or ranks <= one.devices else next(many, gpu)


def _found(options: argparse.Namespace, what: Any, machine: Hardware, settings: dict[str, Any]) -> tuple[Plan, str]:
    (model,) = what.values()
    if options.tokens and "params" in what:
        raise CourseError("--tokens with a number of parameters: what fits depends on the layers. Name a model or give "
                          "--config config.json.")  # fmt: skip
    if options.tokens:
        most = {"most_ranks": settings.pop("world_size")} if "world_size" in settings else {}
        tokens, days = number("--tokens", options.tokens), number("--days", options.days or "30")
        budget = planner.cheapest(model, machine, tokens=tokens, days=days, **most, **settings)
        more = "Published trainings took 1.0 to 2.5 times as many GPU-hours: see docs/limits.md."
        return budget.plan, f"{budget}.\n{more}"
    batch: Any = {"global_batch": number("--global-batch", options.global_batch)} if options.global_batch else {}
    choice = planner.choose(model, machine, **batch, **settings)
    best, lines = choice.best, str(choice).splitlines()
    if not options.why and len(lines) > 7:
        lines[7:] = [f"... of {len(lines) - 1}; --why prints all."]
    return best.plan, "\n".join(lines)


def _compared(what: Any, settings: Any, twice: dict[str, list[Any]], machine: Hardware) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("", "peak", "sent", *planner.COSTS)]
    shown = list[tuple[Plan, Hardware]]()
    said, refused = dict[str, list[str]](), dict[str, list[str]]()  # sentences, each with what it is about
    for values in product(*twice.values()):
        chosen = dict(zip(twice, values, strict=True))
        try:
            one = planner.plan(**what, **settings | chosen)
            held = planner.size(one.peak_bytes), sent(one)
            rows.append((" ".join(flags(chosen)), *held, *planner.costs(one, machine)))
            shown.append((one, machine))
            for note in notes(one):
                said.setdefault(as_options(note), []).append(rows[-1][0])
        except CourseError as refusal:
            refused.setdefault(as_options(str(refusal)), []).append(" ".join(flags(chosen)))
    if not shown and len(refused) == 1:
        raise CourseError(*refused)
    refusals = [why if why.startswith(f"{of[0]}: ") else f"{', '.join(of)}: {why}" for why, of in refused.items()]
    if not shown:
        raise CourseError("\n".join(["none of these can be planned.", *refusals]))
    lines = (f"{', '.join(of)}: {note}" if len(of) < len(shown) else note for note, of in said.items())
    yield from (planner.aligned(rows), *lines, *band(*shown), *refusals)


def _most(planned: Plan, gpu: str) -> Iterator[str]:
    machine, more = HARDWARE[gpu], HARDWARE[_nodes(gpu, inf)]
    most = inf if more.network else machine.devices
    if planned.model.transformer:
        batch, longest = planner.largest_batch(planned, machine), planner.longest_sequence(planned, machine)
        fits = f"The largest micro-batch that fits has {planner.count(batch, 'sequence')}."
        one = planner.verdict(replace(planned, settings=replace(planned.settings, batch=1)), machine)
        yield fits if batch else f"Not even one sequence {'is sure to fit' if one == 'may fit' else 'fits'}."
        if longest:
            limit = ", the most that the model was made for" if longest == planned.model.transformer.context else ""
            yield f"The longest sequence that fits has {longest} tokens{limit}."
    ranks = planner.fewest_ranks(planned, machine)
    given = planned.settings
    all_share = {"--shard-size none": given.shard_size is not None, "--reshard yes": given.reshard not in (0, 1)}
    changed = " and ".join(option for option, changes in all_share.items() if changes)
    if 0 < ranks <= most:
        yield f"It needs {planner.count(ranks, 'GPU')} or more{changed and f', with {changed}'}."
    else:
        less = replace(planned, settings=replace(planned.settings, checkpointing="full"))
        full = "--checkpointing full, or " if 0 < planner.fewest_ranks(less, machine) <= most else ""
        fit = "--fit without --stage" if planned.settings.stage < 3 else "--fit"
        enough = f"It needs {ranks} GPUs, and this hardware has {most}." if ranks else "More GPUs do not help."
        yield f"{enough} Try {full}{fit}."
