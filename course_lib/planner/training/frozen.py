"""What is trained of a model, and what is frozen: adapters (LoRA), a part of the parameters, or nothing at all."""

from .checks import PlanError
from .precision import FROZEN
from .settings import Settings
from .shapes import Model, Unit, numel


def trained(model: Model, settings: Settings) -> Model:
    """Return what is trained of a rank's piece `model`: all of it, adapters beside it, or a part of each unit.

    Raises:
        ValueError: adapters of a rank, but nothing says which matrices there are.
    """
    if not settings.partly_frozen:
        return model
    known = model.transformer
    if settings.lora_rank and known is None:
        raise PlanError(
            f"lora_rank={settings.lora_rank} with shapes or a number: adapters need the matrices of layers. Give a "
            "model, or trainable=0.01, the part of the parameters that is trained."
        )
    if settings.lora_rank and known:
        first = None if settings.adapted == "all" else 4 if known.gated else 2  # queries, keys, values, projection
        units: tuple[Unit, ...] = ((), *(_adapters(unit, settings.lora_rank, first) for unit in model.units[1:]))
    else:
        units = tuple(_share(unit, settings.trainable) for unit in model.units)
    params = sum(map(numel, units)) if units else round(model.params * settings.trainable)
    return Model(name=f"what is trained of {model.name}", params=params, units=units)


def _share(unit: Unit, part: float) -> Unit:
    """Return this part of a unit: of all experts as many elements, because ranks may share them, and of the rest."""
    whole = [shape for shape in unit if len(shape) == 3]
    experts = [(many, 1, round(part * n * m)) for many, n, m in whole]
    rest = round(part * (numel(unit) - numel(whole)))
    return tuple(shape for shape in ((rest,), *experts) if numel([shape]))


def _adapters(unit: Unit, rank: int, first: int | None) -> Unit:
    """Return two matrices for each of n x m, of rank x m and n x rank (Hu et al., arXiv 2106.09685, section 4.1)."""
    matrices = [shape for shape in unit if len(shape) > 1][:first]
    return tuple(one for *many, n, m in matrices for one in ((*many, rank, m), (*many, n, rank)))


def frozen_bytes(model: Model, settings: Settings) -> list[float]:
    """Return the bytes of the frozen parameters of each unit of a rank's piece; of a bare number, as one unit."""
    if not settings.partly_frozen:
        return [0] * max(1, len(model.units))
    units: list[tuple[float, float]] = [(0, model.params)]  # what stays in 16 bits, and what is quantized
    if model.units:
        matrices = [numel([shape for shape in unit if len(shape) > 1]) if at else 0
                    for at, unit in enumerate(model.units)]  # fmt: skip
        units = [(size - inside, inside) for size, inside in zip(model.sizes, matrices, strict=True)]
    part = 1 if settings.lora_rank else 1 - settings.trainable
    width = FROZEN[settings.frozen]
    return [part * (other * max(width, FROZEN["bf16"]) + inside * width) for other, inside in units]
