"""The schedule of one rank's training step, from forward to the gathered parameters.

Three streams: "compute", "communication", and "host" for copies over PCIe and for the optimizer on the CPU. With
`overlap`, gradients are reduced while earlier layers are still in backward, and stage 3 gathers `prefetch` units ahead
of the one in use. Without it, all work is sequential.
"""

from ..memory.engines import layout
from ..training.settings import Settings
from ..training.shapes import Model
from . import work
from .cost import seconds
from .hardware import Hardware
from .schedule import Span, Streams, Timeline
from .volume import Collective, collectives
from .work import Work

COMPUTE, COMMUNICATION, HOST = "compute", "communication", "host"


def timeline(model: Model, settings: Settings, hardware: Hardware) -> Timeline:
    """Return the schedule of one step.

    Raises:
        ValueError: the ranks do not fit the hardware.
    """
    return _Step(model, settings, hardware).run()


class _Step:
    def __init__(self, model: Model, settings: Settings, hardware: Hardware) -> None:
        self.model, self.settings, self.hardware = model, settings, hardware
        self.engine = layout(model, settings)
        self.calls = {(call.what, call.when, call.op): call for call in collectives(model, settings)}
        self.groups = {
            "shard": hardware.shard_group(settings.shards),
            "replica": hardware.replica_group(settings.shards, settings.replicas),
        }
        self.streams = Streams()
        self.computed: list[Span] = []
        self.reduced: list[Span] = []
        self.unreduced = 0.0  # parameters whose gradients wait for their bucket to be full

    def run(self) -> Timeline:
        self._pass("forward", work.forward(self.model, self.settings))
        self._pass("backward", work.backward(self.model, self.settings))
        self._update()
        return self.streams.timeline()

    def _pass(self, when: str, pieces: list[Work]) -> None:
        """Compute the pieces. Before each, gather the next pieces' parameters; after each, reduce its gradients."""
        flops = self.hardware.flops(self.settings.policy.fast)
        ahead = self.settings.prefetch if self.settings.overlap else 0
        gathered: list[list[Span]] = []
        for position, piece in enumerate(pieces):
            for next_piece in pieces[len(gathered) : position + 1 + ahead]:
                gathered.append(self._gather(next_piece, when))
            needed = gathered[position] if self.settings.overlap else gathered[position] + self.reduced[-1:]
            self.computed.append(self.streams.issue(COMPUTE, f"{when} {piece.name}", piece.flops / flops, needed))
            if when == "backward":
                self._reduce(piece, last=position == len(pieces) - 1)

    def _gather(self, piece: Work, when: str) -> list[Span]:
        """Gather a piece's parameters in stage 3, after the piece that is `prefetch` + 1 earlier has been computed."""
        last, settings = self.computed[-1:], self.settings
        if not piece.gathers:
            return []
        if "parameters" in settings.offload and (when == "forward" or settings.reshard):
            copied = piece.gathers * self.engine.policy.parameter / settings.shards
            name = f"copy {piece.name} to the device"
            last = [self.streams.issue(HOST, name, copied / self.hardware.host_link, last)]
        if call := self.calls.get(("parameters", when, "all_gather")):
            cost = self._cost(call, piece.gathers / self.model.params)
            last = [self.streams.issue(COMMUNICATION, f"gather {piece.name}", cost, last)]
        return last

    def _reduce(self, piece: Work, last: bool) -> None:
        """Send full buckets as soon as their gradients exist. In stage 3 each unit is its own bucket."""
        self.unreduced += piece.reduces
        bucket = self.engine.bucket_bytes / self.engine.policy.reduced
        if self.settings.engine == "zero" and self.settings.stage == 1 and not last:
            return  # this course's stage 1 averages in `step`
        whole_buckets = self.settings.stage < 3 and not last
        ready = self.unreduced // bucket * bucket if whole_buckets else self.unreduced
        if not ready:
            return
        self.unreduced -= ready
        after, share = [self.computed[-1]], ready / self.model.params
        for op in ("reduce_scatter", "all_reduce"):
            if call := self.calls.get(("gradients", "backward", op)):
                name = f"{op} of gradients to {piece.name}"
                after = [self.streams.issue(COMMUNICATION, name, self._cost(call, share), after)]
        if "optimizer" in self.settings.offload:
            copied = share * sum(self.engine.shard) * self.engine.policy.gradient
            name = f"copy gradients to {piece.name} to the host"
            after = [self.streams.issue(HOST, name, copied / self.hardware.host_link, after)]
        self.reduced += after

    def _update(self) -> None:
        """Schedule the optimizer's step, bound by memory bandwidth; then stages 1 and 2 gather the parameters."""
        after = [self.computed[-1], *self.reduced]
        touched, numel = self._touched_bytes(), sum(self.engine.shard)
        if "optimizer" in self.settings.offload:
            rate = self.hardware.host_bandwidth / self.hardware.devices
            done = self.streams.issue(HOST, "optimizer step on the host", touched / rate, after)
            if "parameters" not in self.settings.offload:
                back = numel * self.engine.policy.parameter / self.hardware.host_link
                done = self.streams.issue(HOST, "copy parameters to the device", back, [done])
        else:
            done = self.streams.issue(COMPUTE, "optimizer step", touched / self.hardware.memory_bandwidth, after)
        for op in ("all_gather", "broadcast"):
            if call := self.calls.get(("parameters", "after the step", op)):
                self.streams.issue(COMMUNICATION, f"{op} of parameters", self._cost(call, 1.0), [done])

    def _touched_bytes(self) -> float:
        """Return the bytes that the optimizer reads (gradients), and reads and writes (parameters and states)."""
        policy, numel = self.engine.policy, sum(self.engine.shard)
        states = sum(self.settings.kept.state_tensors(self.engine.updated, policy.state))
        updated = policy.master or policy.kept or policy.parameter
        written_anew = policy.parameter if policy.master else 0
        return numel * (policy.gradient + 2 * updated + written_anew) + 2 * states

    def _cost(self, call: Collective, share: float) -> float:
        """Return the seconds for `share` of `call`, cut into buckets outside of stage 3."""
        group, nbytes = self.groups[call.group], call.total_bytes * share
        bucket = nbytes if self.settings.stage == 3 else min(nbytes, self.engine.bucket_bytes)
        return nbytes / bucket * seconds(call.op, bucket, group)
