"""The shapes of a model's tensors, unit by unit, from the few numbers that describe a transformer.

[Note: units] A unit is what stage 3 gathers, uses and frees together. The first is the outer one, which forward needs
both first and last: the embedding, the last norm and the head. Then come the layers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from .checks import PlanError, whole
from .config import described

Shape = tuple[int, ...]
Unit = tuple[Shape, ...]


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A decoder-only transformer.

    Attributes:
        name: its authors' name for it.
        layers, hidden, heads, vocab: as in the papers (L, h, a, V).
        kv_heads: heads of keys and values; fewer than `heads` in grouped-query attention.
        ffn: width of the feed-forward layer, or of one expert.
        positions: rows of a learned position table; 0 for rotary positions, which have no parameters.
        context: the longest sequence that it was made for, in tokens.
        gated: True: SwiGLU with three matrices, RMSNorm and no bias (Llama); False: GELU with two, LayerNorm and biases
            (GPT-2).
        dropout: whether it is trained with dropout, after the embedding, on the scores and on what joins the residual
            stream.
        tied: whether the head is the embedding, counted once.
        source: where these numbers are published.
        head_size: elements of a head; by default hidden / heads.
        vectors: further elements of a layer: biases, norms of queries and keys.
        experts: the number of experts in a layer; 0 for a dense model.
        chosen: experts that compute each token.
        shared_ffn: width of the experts that compute every token, all together.
        dense_layers, dense_ffn: how many of the first layers have no experts, and their width.
        window, windowed_layers: how many tokens back some layers see, and how many layers do; the others see all.

    Raises:
        ValueError: a number is not whole and positive, lacks the one that belongs to it, or heads do not divide what
            they share.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    positions: int
    context: int
    gated: bool
    dropout: bool
    tied: bool
    source: str
    head_size: int = 0
    vectors: int = 0
    experts: int = 0
    chosen: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    dense_ffn: int = 0
    window: int = 0
    windowed_layers: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Transformer":
        """Return the transformer that a Hugging Face `config.json` describes; errors as `config.described`."""
        return cls(**described(config))

    def __post_init__(self) -> None:
        values = vars(self)  # whole numbers become ints: 32.0 is 32
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "context"):
            values[name] = whole(name, values[name])
        for name in ("positions", "head_size", "vectors", "experts", "shared_ffn", "dense_ffn", "window"):
            values[name] = whole(name, values[name], least=0)
        values["chosen"] = whole("chosen", self.chosen, least=min(1, self.experts), most=self.experts)
        for name, most in {"dense_layers": self.layers if self.experts else 0, "windowed_layers": self.layers}.items():
            values[name] = whole(name, values[name], least=0, most=most)
        for name, of in (("window", "windowed_layers"), ("windowed_layers", "window"), ("dense_layers", "dense_ffn")):
            if values[name] and not values[of]:
                raise PlanError(f"{name}={values[name]}, {of}=0: it says nothing without {of}. Give both, or neither.")
        if self.experts and not self.gated:
            raise PlanError(f"experts={self.experts}, gated=False: experts are planned with a gate. Choose gated=True.")
        if (self.hidden % self.heads and not self.head_size) or self.heads % self.kv_heads:
            raise PlanError(
                f"hidden={self.hidden}, heads={self.heads}, kv_heads={self.kv_heads}: each head has hidden / heads "
                "elements, and each of kv_heads serves as many heads. Choose heads that divide hidden, and kv_heads "
                "that divide heads."
            )

    @property
    def kv_hidden(self) -> int:
        """Elements of a token's keys, and of its values, in one layer."""
        return self.q_hidden // self.heads * self.kv_heads

    @property
    def q_hidden(self) -> int:
        """Elements of a token's queries in one layer."""
        return self.head_size * self.heads or self.hidden

    @property
    def computed_ffn(self) -> int:
        """The width of the feed-forward layer that computes a token, without padding: its experts together."""
        return self.chosen * self.ffn + self.shared_ffn if self.experts else self.ffn

    @property
    def layer(self) -> Unit:
        """The tensors of one layer, matrices as torch.nn.Linear keeps them: (out, in), and of experts all together."""
        return self._layer(self.experts, self.ffn, self.shared_ffn)

    def _layer(self, experts: int, f: int, shared: int) -> Unit:
        h, q, kv = self.hidden, self.q_hidden, self.kv_hidden
        more: Unit = ((self.vectors,),) if self.vectors else ()
        if not self.gated:
            attention: Unit = ((q + 2 * kv, h), (q + 2 * kv,), (h, q), (h,))
            return ((h,), (h,), *attention, (h,), (h,), (f, h), (f,), (h, f), (h,), *more)
        many = (experts,) if experts else ()
        feed_forward: Unit = ((*many, f, h), (*many, f, h), (*many, h, f))
        if experts:
            feed_forward = ((experts, h), *feed_forward, *(((shared, h), (shared, h), (h, shared)) if shared else ()))
        return ((h,), (q, h), (kv, h), (kv, h), (h, q), (h,), *feed_forward, *more)

    @property
    def behind(self) -> Unit:
        """The tensors after the layers: the last norm's, and the head."""
        norm: Unit = ((self.hidden,),) if self.gated else ((self.hidden,), (self.hidden,))
        return norm if self.tied else (*norm, (self.vocab, self.hidden))

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The outer unit, then the layers."""
        h = self.hidden
        embedding: Unit = ((self.vocab, h), (self.positions, h)) if self.positions else ((self.vocab, h),)
        dense = [self._layer(0, self.dense_ffn, 0)] * self.dense_layers
        return ((*embedding, *self.behind), *dense, *[self.layer] * (self.layers - self.dense_layers))

    def seen(self, sequence: int) -> float:
        """Return how many tokens each token attends to in a layer, on average over the layers.

        Tokens that the causal mask discards are counted, inside a window as well. Tokens that are further apart than
        the window are not counted.
        """
        discarded = max(0, sequence - self.window) ** 2 / sequence
        return sequence - discarded * self.windowed_layers / self.layers

    def layer_flops(self, sequence: int, capacity: float = 1) -> tuple[float, float]:
        """Return the forward FLOPs of one layer for one token: (matrices, attention over `sequence` tokens).

        A multiplication with an addition counts as two. As in Narayanan et al. (arXiv 2104.04473, section 5.1), the
        half of the scores that the causal mask discards is counted. Each token passes `chosen` experts, which compute
        `capacity` times as many tokens as come, with padding. Layers without experts are taken to be as wide as others.
        """
        matrices, experts = (numel([shape for shape in self.layer if len(shape) == size]) for size in (2, 3))
        passed = capacity * experts * self.chosen / max(1, self.experts)
        return 2 * (matrices + passed), 4 * self.seen(sequence) * self.q_hidden

    @property
    def idle(self) -> int:
        """Parameters that do not compute a token: those of experts that are not chosen for it."""
        experts = numel([shape for unit in self.units for shape in unit if len(shape) == 3])
        return experts * (self.experts - self.chosen) // max(1, self.experts)

    @property
    def head_flops(self) -> int:
        """Forward FLOPs of the head for one token."""
        return 2 * self.hidden * self.vocab


@dataclass(frozen=True, kw_only=True)
class Model:
    """The model of a plan, as far as it is known.

    Attributes:
        name: for texts.
        params: Ψ, the number of parameters.
        units: the shapes of its tensors, the outer unit first; empty if only Ψ is known.
        behind: how many of the outer unit's last tensors, the last norm's and the head's, come after the layers.
        transformer: its description, if it is a transformer; without it, activations are unknown.
    """

    name: str
    params: int
    units: tuple[Unit, ...] = field(default=(), repr=False)
    behind: int = 0
    transformer: Transformer | None = None

    @cached_property
    def sizes(self) -> list[int]:
        """The elements of each unit."""
        return [*map(numel, self.units)]

    @property
    def tied(self) -> int:
        """Elements of a tied embedding, which gets a gradient from the head and one at the end; 0 without one."""
        known = self.transformer
        ends = known and known.tied and self.units and 0 < self.behind < len(self.units[0])
        return math.prod(self.units[0][0]) if ends else 0

    @property
    def early(self) -> int:
        """Elements of the outer unit whose gradients exist while the layers are in backward: head and last norm."""
        if not self.units:
            return 0
        outer = self.units[0]
        return numel(outer[len(outer) - self.behind :]) + self.tied if self.transformer else numel(outer)

    @property
    def shapes(self) -> list[Shape]:
        """All tensors, in the order in which forward uses them."""
        outer, layers = self.units[0] if self.units else (), [shape for unit in self.units[1:] for shape in unit]
        begin = len(outer) - self.behind
        return [*outer[:begin], *layers, *outer[begin:]]


def numel(shapes: Sequence[Shape]) -> int:
    """Return the number of elements of these tensors together."""
    return sum(map(math.prod, shapes))


def of_transformer(transformer: Transformer) -> Model:
    """Return the model of `transformer`."""
    units = transformer.units
    return Model(
        name=transformer.name, params=sum(map(numel, units)), units=units, behind=len(transformer.behind),
        transformer=transformer,
    )  # fmt: skip


def of_params(params: Any) -> Model:
    """Return a model from a number of parameters, from shapes, or from shapes grouped into units.

    `[p.shape for p in model.parameters()]` are shapes, and make one unit. With several units, the first is the outer
    one, which contains everything outside the layers and may be empty: `[[], *([p.shape for p in layer.parameters()]
    for layer in layers)]`.

    Raises:
        ValueError: it is none of these, or they have no elements.
    """
    if isinstance(params, Real):
        return Model(name="a model", params=whole("params", params, most=10**15))
    try:
        given = list(params) if not isinstance(params, str) else []
        flat = all(isinstance(size, Integral) for shape in given for size in shape)
        units = [tuple(map(_shape, given))] if flat else [tuple(map(_shape, unit)) for unit in given]
        if not given:
            raise TypeError
    except TypeError:
        named = f" A model's name goes in model={params!r}." if isinstance(params, str) else ""
        raise PlanError(
            f"params={params!r}: that is neither a number, nor shapes, nor units made of shapes. "
            f"Give for example 7.5e9, or [p.shape for p in model.parameters()].{named}"
        ) from None
    if not (count := sum(map(numel, units))):
        raise PlanError(f"params={params!r}: these shapes have no elements, so there is nothing to train. Check them.")
    return Model(name=f"a model of {len(units)} unit{'s' * (len(units) > 1)}", params=count, units=tuple(units))


def _shape(sizes: Any) -> Shape:
    return tuple(whole("size", size, least=0) for size in sizes)
