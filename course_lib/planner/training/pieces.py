"""The piece of a model that one rank holds: the layers of its pipeline stage, and its part of each matrix."""

from collections.abc import Sequence
from dataclasses import replace

from .checks import PlanError
from .settings import Settings
from .shapes import Model, Shape, Transformer, Unit, numel


def piece(model: Model, settings: Settings) -> Model:
    """Return the piece of the planned stage's first rank. Without tensor and pipeline parallelism it is the model.

    Raises:
        ValueError: only shapes are known, so that nothing says how matrices are cut; or too few heads or layers.
    """
    tensor, pipeline = settings.tensor_parallel, settings.pipeline_parallel
    if tensor == pipeline == settings.expert_parallel == 1:
        return model
    if not model.units and settings.expert_parallel == 1:
        return replace(model, params=-(-model.params // (tensor * pipeline)))
    if model.transformer is None:
        raise PlanError(
            f"tensor_parallel={tensor}, pipeline_parallel={pipeline}, expert_parallel={settings.expert_parallel} with "
            "shapes or a number: they do not say how matrices are cut. Give a model, or, without experts, a number."
        )
    return _of_transformer(model, model.transformer, settings)


def _of_transformer(model: Model, transformer: Transformer, settings: Settings) -> Model:
    tensor, stage = settings.tensor_parallel, settings.pipeline_stage
    if transformer.kv_heads % tensor:  # which divides heads
        raise PlanError(
            f"tensor_parallel={tensor} with {transformer.name}: it has {transformer.kv_heads} heads of keys and "
            "values, and a rank needs whole heads. Choose a divisor of that."
        )
    if settings.expert_parallel > 1 and not transformer.experts:
        raise PlanError(
            f"expert_parallel={settings.expert_parallel} with {transformer.name}: it has no experts. Leave it out, or "
            "choose a model with experts, such as mixtral-8x7b."
        )
    if transformer.experts % settings.expert_parallel:
        raise PlanError(
            f"expert_parallel={settings.expert_parallel} with {transformer.name}: it has {transformer.experts} experts "
            "in a layer, and a rank needs whole ones. Choose a divisor of that."
        )
    pieces, counts = settings.pipeline_parallel * settings.model_chunks, stage_layers(transformer, settings)
    if pieces > transformer.layers + 2 or len(counts) < settings.pipeline_parallel:
        raise PlanError(  # embedding and head count as two layers, as in Llama 3 405B
            f"pipeline_parallel={settings.pipeline_parallel} with {transformer.name}: its {transformer.layers} layers "
            f"do not fill {pieces} parts. Choose fewer stages or fewer model_chunks."
        )
    first, last = stage == 0, settings.last_stage
    outer = model.units[0]
    begin = 1 + sum(counts[:stage])
    layers = model.units[begin : begin + counts[stage]]
    before, behind = outer[: len(outer) - model.behind], outer[len(outer) - model.behind :]
    if last and not first and transformer.tied:
        behind = (*behind, (transformer.vocab, transformer.hidden))  # a copy of the embedding
    kept: Unit = (*(before if first else ()), *(behind if last else ()))
    alike = {id(unit): unit for unit in (kept, *layers)}
    cut = {one: _parts(unit, transformer, settings, layer=unit is not kept) for one, unit in alike.items()}
    units = tuple(cut[id(unit)] for unit in (kept, *layers))
    return replace(model, params=sum(map(numel, units)), units=units, behind=len(behind) if last else 0)


def _parts(unit: Unit, transformer: Transformer, settings: Settings, *, layer: bool) -> Unit:
    """Return a rank's part of each tensor of a unit: tensor-parallel ranks cut matrices, their biases, and experts.

    They cut the rows of a matrix, or the columns of the last one of attention and of each feed-forward layer, whose
    results are added up (Megatron-LM, arXiv 1909.08053, section 3). Norms, what is added after that, and the matrix
    that chooses experts stay whole.
    """
    whole = ((transformer.hidden,), (transformer.experts, transformer.hidden))
    attention, each = (4, 3) if transformer.gated else (2, 2)  # the matrices of both
    place, cut = 0, list[Shape]()
    for shape in unit:
        if shape not in whole:
            last = place == attention - 1 or (place >= attention and (place - attention) % each == each - 1)
            at = max(0, len(shape) - (1 if layer and last else 2))  # of a bias, its only dimension
            shape = (*shape[:at], -(-shape[at] // settings.tensor_parallel), *shape[at + 1 :])
            place += len(shape) > 1
        cut.append((shape[0] // settings.expert_parallel, *shape[1:]) if len(shape) == 3 else shape)
    return tuple(cut)


def together(units: Sequence[Unit], settings: Settings) -> Sequence[Unit]:
    """Return a rank's units with the experts of all expert-parallel ranks: these together share the states.

    A shard of them is as large as one of the rank's own experts among the ranks that have the same experts.
    """
    many = settings.expert_parallel
    return units if many == 1 else [
        tuple((shape[0] * many, *shape[1:]) if len(shape) == 3 else shape for shape in unit) for unit in units
    ]  # fmt: skip


def stage_layers(transformer: Transformer, settings: Settings) -> list[int]:
    """Return the number of layers of each stage.

    Equal numbers, as in Megatron-LM. If that does not divide, embedding and head count as a layer each, and the first
    stages take one layer more, as in torchtitan (generate_llm_fqn_per_model_part): Llama 3 405B has 126 layers on 16
    stages, 7 in the first and the last, and 8 in the others.
    """
    layers, stages = transformer.layers, settings.pipeline_parallel
    if settings.engine == "nanotron":
        return _by_blocks(transformer, stages)
    if layers % stages == 0:
        return [layers // stages] * stages
    each, more = divmod(layers + 2, stages)
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
    return counts


def _by_blocks(transformer: Transformer, stages: int) -> list[int]:
    """Return nanotron's number of layers of each stage that gets any block (models/base.py, build_model).

    A stage takes blocks until the parameters in their matrices, the head's among them, reach its share. So the last
    stages may have no layer, but the norm and the head, or the loss only. All 118 published runs in which a stage got
    nothing crashed.
    """
    layer = numel([shape for shape in transformer.layer if len(shape) > 1])
    head = transformer.vocab * transformer.hidden
    whole, taken, stage = transformer.layers * layer + head, 0, 0
    blocks: list[list[int]] = [[] for _ in range(stages)]
    for cost in (0, *[layer] * transformer.layers, 0, head, 0, 0):  # the last: norm, head, logits in fp32, loss
        blocks[stage].append(cost)
        taken += cost
        stage += stage + 1 < stages and taken * stages >= whole * (stage + 1)
    return [mine.count(layer) for mine in blocks if mine]
