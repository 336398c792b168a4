"""Loss scaling, so that small gradients do not become 0 in fp16 (Micikevicius et al. 2018, "Mixed Precision Training").

fp16 has no numbers below 6e-8, and many gradients of a large model are smaller. So the loss, and with it every
gradient, is multiplied by a large scale before backward, and the averaged gradients, in fp32 by then, are divided by
it again. A scale that is too large makes infinities: then the step is skipped and the scale halved. bf16, whose
exponent has the range of fp32's, needs none of this.
"""

from torch import Tensor

from .engine import Engine


class LossScaler:
    """Scales an engine's losses, and skips the steps whose gradients overflow.

    Instead of `loss.backward(); engine.step()`:

        scaler.scale(loss).backward()
        scaler.unscale_()              # only needed before you use the gradients, such as for clipping
        scaler.step()

    Args:
        engine: whose gradients these are.
        scale: to begin with.
        growth_interval: after how many steps in a row without overflow the scale is doubled.
    """

    def __init__(self, engine: Engine, scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.engine = engine
        self.current_scale = scale
        self.growth_interval = growth_interval
        self.good_steps = 0  # in a row
        self._finite: bool | None = None  # whether the gradients are; None while they are scaled
        self._zeroed = 0  # the engine's count when they were unscaled: zero_grad may come instead of a step

    def scale(self, loss: Tensor) -> Tensor:
        """Return the scaled loss, in fp32, to call `backward` on."""
        return loss.float() * self.current_scale

    def unscale_(self) -> None:
        """Divide the averaged gradients by the scale. Call this on every rank; a second call has no effect."""
        if self._finite is not None and self._zeroed == self.engine.zeroed:
            return
        self.engine.average_gradients()
        for shard in self.engine.shards():
            if shard.values.grad is not None:
                shard.values.grad.mul_(1 / self.current_scale)
        # An overflow is in one rank's shard, and all ranks must skip the step.
        self._finite, self._zeroed = bool(self.engine.total_norm().isfinite()), self.engine.zeroed

    def step(self) -> bool:
        """Step the engine unless a gradient has overflowed on any rank, and adapt the scale.

        Returns:
            Whether the step was made: the same on every rank.
        """
        self.unscale_()
        finite, self._finite = bool(self._finite), None
        self.good_steps = self.good_steps + 1 if finite else 0
        if finite:
            self.engine.step()
        else:
            self.current_scale /= 2
        if self.good_steps == self.growth_interval:
            self.current_scale, self.good_steps = self.current_scale * 2, 0
        return finite
