"""The schedule of one rank's training step, from forward to the gathered parameters.

Streams: "compute", "communication", "tensor parallel" and "expert parallel" for what a layer waits for, "context
parallel" for keys and values, "pipeline" for sends and waits between stages, and "host" for copies over PCIe, the
optimizer on the CPU, and a slow CPU's launches. Gradients are reduced while earlier layers are still in backward, stage
3 gathers `prefetch` units ahead of the one in use, and stages 1 and 2 of the paper gather the parameters of the last
step while the first micro-batch's first layers compute. The last micro-batch is scheduled layer by layer. The ones
before are one span on each stream, with as much work, and as much of it hidden, as the last one without its reductions;
the first one's forward waits for the gathers as well.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from ..memory.layout import layout, optimized
from ..training.frozen import frozen_bytes, trained
from ..training.pieces import piece as piece_of
from ..training.settings import Settings
from ..training.shapes import Model
from . import work
from .cost import seconds
from .hardware import Hardware
from .places import groups, leaves_node
from .schedule import AWAITED, COMMUNICATION, COMPUTE, CONTEXT, EXPERT, HOST, PIPELINE, TENSOR, Span, Streams, Timeline
from .volume import Collective, collectives
from .work import Work

EXCHANGED = ("activations", "expert activations", "logits")
"""The tensors of a layer that ranks exchange if they share matrices or experts; computing waits for them."""
CPU_ADAM = 0.13
"""The part of the host's memory bandwidth that the optimizer's step on the CPU uses.

Fitted on two published steps: 72B on 32 A100 (DeepSpeed, issue 6834) and 106B on 32 H100 (slime, issue 1139).
"""


def timeline(model: Model, settings: Settings, hardware: Hardware) -> Timeline:
    """Return the schedule of one step of the planned stage, with the whole model given.

    Raises:
        ValueError: the ranks do not fit the hardware.
    """
    step = _Step(piece_of(model, settings), settings, hardware)
    if settings.micro_batches > 1 or settings.pipeline_parallel > 1:
        stages = _micro_batches(model, settings, hardware)
        if before := settings.micro_batches - 1:
            step.earlier(stages[settings.pipeline_stage], before)
        if settings.pipeline_parallel > 1:
            waiting = waiting_seconds([stage.seconds for stage in stages], settings)
            step.streams.wait(COMPUTE, [step.streams.issue(PIPELINE, "wait for other stages", waiting)])
    return step.run(last=True)


def _micro_batches(model: Model, settings: Settings, hardware: Hardware) -> list[Timeline]:
    """Return each stage's work on a micro-batch, without late reductions. Stages with equal pieces do the same."""
    pieces, known = [], {}
    for stage in range(settings.pipeline_parallel):
        at = replace(settings, pipeline_stage=stage)
        pieces.append((piece_of(model, at), at.last_stage, leaves_node(at, hardware.devices)))
        if pieces[-1] not in known:
            known[pieces[-1]] = _Step(pieces[-1][0], at, hardware).run(last=False)
    return [known[one] for one in pieces]


def waiting_seconds(stages: Sequence[float], settings: Settings) -> float:
    """Return how long the planned stage waits for the others, whose micro-batches take `stages` seconds.

    Each micro-batch waits for the slowest stage. In addition, the first one passes through all stages before the last
    stage can begin: the bubble of Narayanan et al. (arXiv 2104.04473), section 2.2, an interleaved one in parts.
    """
    mine = stages[settings.pipeline_stage]
    return (settings.micro_batches - 1) * (max(stages) - mine) + (sum(stages) - mine) / settings.model_chunks


class _Step:
    def __init__(self, model: Model, settings: Settings, hardware: Hardware) -> None:
        self.model, self.settings, self.hardware = model, settings, hardware
        self.own = trained(model, settings)
        self.engine = layout(self.own, settings)
        self.calls = {(call.what, call.when, call.op): call for call in collectives(model, settings)}
        self.exchanged = [call for call in self.calls.values() if call.what in EXCHANGED and call.op != "send"]
        self.rings = [call for call in self.calls.values() if call.what == "context activations"]
        self.groups = groups(settings, hardware)
        self.costs: dict[tuple[Any, ...], float] = {}
        self.streams = Streams()
        self.computed: list[Span] = []
        self.reduced: list[Span] = []
        self.unreduced = 0.0  # parameters whose gradients wait for their bucket to be full
        self.gathers_late = settings.engine == "paper" and settings.stage in (1, 2)  # in the next step's first forward
        kept = self.engine.policy.kept * self.own.params + sum(frozen_bytes(model, settings))
        self.kept = kept / max(1, model.params)  # bytes of a parameter in a shard; a stage may have none
        self.layer_share = 1 / max(1, len(model.units) - 1)
        self.last = False  # whether the micro-batch that is scheduled is the last one before the step
        self.first = False  # whether it is the first one, after the step before

    def run(self, last: bool) -> Timeline:
        """Schedule a micro-batch. After the last, gradients have been reduced, and the optimizer makes its step."""
        self.last, self.first = last, last and self.settings.micro_batches == 1
        self._pass("forward", work.forward(self.model, self.settings))
        self._send("forward")
        if self.settings.trainable:
            self._pass("backward", work.backward(self.model, self.settings))
            self._send("backward")
        if last and self.settings.trainable:
            self._update()
        return self.streams.timeline()

    def earlier(self, each: Timeline, times: int) -> None:
        """Schedule `times` micro-batches before the last, each as in `each`, as one span on each stream.

        Computing is first, and each stream overlaps with it, and with the streams before it in `AWAITED`, for as long
        as in all of them. The first micro-batch's forward waits for the late gathers. The last micro-batch begins when
        all work of the others is done.
        """
        label, begun = "earlier micro-batches", Timeline(spans=())
        if self.gathers_late:
            pieces, alone = work.forward(self.model, self.settings), _Step(self.model, self.settings, self.hardware)
            alone._pass("forward", pieces)
            self.first, begun = True, alone.streams.timeline()
            self._pass("forward", pieces, label=f"{label}, ")
        computed = self.streams.issue(COMPUTE, label, max(0.0, times * each.busy(COMPUTE) - begun.busy(COMPUTE)))
        end = computed._replace(end=computed.start + max(0.0, times * each.seconds - begun.seconds))
        ends, waits, begun_waits = computed.end, each.waits(), begun.waits()
        for stream in AWAITED:
            exposed = times * each.exposed(stream, COMPUTE) - begun.exposed(stream, COMPUTE)
            hidden = times * each.busy(stream) - begun.busy(stream) - exposed
            ends += max(0.0, times * waits[stream] - begun_waits[stream])
            apart = ends - exposed > computed.end + 1e-9
            for busy, until in ((hidden, computed.end), (exposed, ends)) if apart else ((hidden + exposed, ends),):
                if busy > 0:
                    self.streams.issue(stream, label, busy, [computed._replace(end=until - busy)])
            self.streams.wait(stream, [end])
        self.streams.wait(COMPUTE, [end])

    def _pass(self, when: str, pieces: list[Work], label: str = "") -> None:
        """Compute the pieces. Before each, gather the next pieces' parameters; after each, reduce its gradients."""
        ahead = len(pieces) if self.gathers_late else self.settings.prefetch
        gathered: list[list[Span]] = []
        for position, piece in enumerate(pieces):
            for next_piece in pieces[len(gathered) : position + 1 + ahead]:
                gathered.append(self._gather(next_piece, when))
            name, after, around = f"{label}{when} {piece.name}", gathered[position], self._around(piece, when)
            if launch := work.LAUNCH.get(self.settings.engine, 0) * piece.layers:
                after = [*after, self.streams.issue(HOST, f"launch {name}", launch)]
            self.computed.append(self.streams.issue(COMPUTE, name, self._seconds(piece), after))
            self.streams.wait(COMPUTE, around)
            self._exchange(piece, when)
            if when == "backward":
                self._reduce(piece, last=position == len(pieces) - 1)

    def _seconds(self, piece: Work) -> float:
        machine = self.hardware
        peak = machine.peak_flops(self.settings.policy.fast)
        faster = machine.fp8_speed() if self.settings.fp8 != "none" and piece.layers else 1
        rates = (machine.achievable * peak * faster, machine.attention * peak, machine.memory_bandwidth)
        traffic = piece.traffic + piece.reduces * self._summed_bytes()
        return piece.matrices / rates[0] + piece.attention / rates[1] + traffic / rates[2]

    def _summed_bytes(self) -> float:
        """Return the bytes moved to add a parameter's new gradient to its sum over micro-batches: two reads, a write.

        The paper's engine adds it in the kernel that computes it, as Megatron-LM does, and nanotron adds a single one.
        """
        settings, policy = self.settings, self.engine.policy
        if settings.engine == "paper" or (settings.micro_batches == 1 and settings.engine != "nanotron"):
            return 0.0
        sums = policy.accumulated or policy.gradient
        sharded = settings.stage >= 2 and not settings.whole_gradients
        return (policy.gradient + 2 * sums) / (settings.shards if sharded else 1)

    def _exchange(self, piece: Work, when: str) -> None:
        """Let ranks exchange a layer's tokens, for which computing waits: those that share matrices, or experts."""
        earlier: list[Span] = []
        for call in self.exchanged:
            layers = call.what != "logits"
            if call.when == when and bool(piece.layers) == layers and (layers or piece.name == "head"):
                cost = self._cost(call, self.layer_share if layers else 1.0, parts=2)
                name = f"{call.op} of {call.what} of {piece.name}"
                stream = EXPERT if call.group == "expert" else TENSOR
                earlier = [self.streams.issue(stream, name, cost, [*self.computed[-1:], *earlier])]
                self.streams.wait(COMPUTE, earlier)

    def _around(self, piece: Work, when: str) -> list[Span]:
        """Let keys and values go around among the ranks of a sequence, while the layer computes with those it has."""
        calls = [call for call in self.rings if piece.layers and call.when == when]
        cost = sum(self._cost(call, self.layer_share, parts=1) for call in calls)
        name = f"keys and values of {piece.name}"
        return [self.streams.issue(CONTEXT, name, cost, self.computed[-1:])] if calls else []

    def _send(self, when: str) -> None:
        """Exchange a micro-batch's activations, or their gradients, with a neighbouring stage.

        Those of all its parts but the last go while the next part computes.
        """
        machine, settings, known = self.hardware, self.settings, self.model.transformer
        if known and settings.pipeline_parallel > 1:
            link, sharing = machine.inside, 1
            if machine.network and leaves_node(settings, machine.devices):
                link, sharing = machine.network, min(machine.devices, settings.tensor_parallel * settings.data_parallel)
            tokens = settings.tokens * known.hidden * settings.policy.activation / settings.tensor_parallel
            cost = link.alpha + tokens * sharing / link.bandwidth
            if settings.model_chunks > 1:
                earlier = (settings.model_chunks - 1) * cost
                self.streams.issue(PIPELINE, f"send activations of earlier parts, {when}", earlier)
            self.streams.issue(PIPELINE, f"send activations, {when}", cost, self.computed[-1:])

    def _gather(self, piece: Work, when: str) -> list[Span]:
        """Gather a piece's parameters in stage 3, after the piece that is `prefetch` + 1 earlier has been computed."""
        last, settings = self.computed[-1:], self.settings
        if not piece.gathers:
            return []
        if "parameters" in settings.offload and (when == "forward" or settings.gathers_again == settings.shards):
            copied = piece.gathers * self.kept / settings.shards
            name = f"copy {piece.name} to the device"
            last = [self.streams.issue(HOST, name, copied / self.hardware.host_link, last)]
        if self.gathers_late:
            when = "after the step" if when == "forward" and self.first else ""  # the step before
            last = []
        for what in ("parameters", "expert parameters"):
            if call := self.calls.get((what, when, "all_gather")):
                cost = self._cost(call, piece.gathers / self.model.params)
                last = [self.streams.issue(COMMUNICATION, f"gather {piece.name}", cost, last)]
        return last

    def _reduce(self, piece: Work, last: bool) -> None:
        """Send full buckets as soon as their gradients exist. In stage 3 each unit is its own bucket."""
        late = self.settings.whole_gradients if self.settings.stage >= 2 else self.settings.reductions == 1
        if not self.last and (late or self.settings.micro_batches == 1):
            return  # of one micro-batch, all stages of a pipeline reduce at once, after the last one's backward
        self.unreduced += piece.reduces
        bucket = self.engine.bucket_bytes / self.engine.policy.reduced
        if self.settings.engine == "zero" and self.settings.stage == 1 and not last:
            return  # this course's stage 1 averages in `step`
        whole_buckets = self.settings.stage < 3 and not last
        ready = self.unreduced // bucket * bucket if whole_buckets else self.unreduced
        if not ready:
            return
        self.unreduced -= ready
        after, share = [self.computed[-1]], ready / self.own.params
        for what, op in product(("gradients", "expert gradients"), ("reduce_scatter", "all_reduce")):
            if call := self.calls.get((what, "backward", op)):
                name = f"{op} of {what} to {piece.name}"
                after = [self.streams.issue(COMMUNICATION, name, self._cost(call, share), after)]
        if "optimizer" in self.settings.offload:
            copied = share * sum(self.engine.shard) * self.engine.policy.gradient
            name = f"copy gradients to {piece.name} to the host"
            after = [self.streams.issue(HOST, name, copied / self.hardware.host_link, after)]
        self.reduced += after

    def _update(self) -> None:
        """Schedule the optimizer's step, bound by memory bandwidth; then stages 1 and 2 gather the parameters.

        The step reads gradients, reads and writes masters and states, and writes parameters that have masters.
        """
        policy, numel, after = self.engine.policy, sum(self.engine.shard), [self.computed[-1], *self.reduced]
        shapes = optimized(self.model, self.settings)
        states = self.settings.kept.state_bytes(self.engine.updated, policy.state, shapes)
        updated, anew = policy.master or policy.kept or policy.parameter, policy.parameter if policy.master else 0
        touched = numel * (policy.gradient + 2 * updated + anew) + 2 * states
        if "optimizer" in self.settings.offload:
            rate = CPU_ADAM * self.hardware.host_bandwidth / self.hardware.sharing(self.settings.world_size)
            done = self.streams.issue(HOST, "optimizer step on the host", touched / rate, after)
            if "parameters" not in self.settings.offload:
                back = numel * self.engine.policy.parameter / self.hardware.host_link
                done = self.streams.issue(HOST, "copy parameters to the device", back, [done])
        else:
            done = self.streams.issue(COMPUTE, "optimizer step", touched / self.hardware.memory_bandwidth, after)
            if "parameters" in self.settings.offload:
                back = numel * self.engine.policy.kept / self.hardware.host_link
                self.streams.issue(HOST, "copy parameters to the host", back, [done])
        late = ("parameters", "expert parameters") if not self.gathers_late else ()
        for what, op in product(late, ("all_gather", "broadcast")):
            if call := self.calls.get((what, "after the step", op)):
                self.streams.issue(COMMUNICATION, f"{op} of parameters", self._cost(call, 1.0), [done])

    def _cost(self, call: Collective, share: float, parts: int = 0) -> float:
        """Return the seconds for `share` of a micro-batch's `call`, in `parts`, a unit at once, or in buckets."""
        if (known := self.costs.get((id(call), share, parts))) is not None:  # layers are alike
            return known
        group, nbytes = self.groups[call.group], call.total_bytes / call.micro_batches * share
        bucket = nbytes / (parts or 1) if parts or self.settings.stage == 3 else min(nbytes, self.engine.bucket_bytes)
        self.costs[id(call), share, parts] = cost = nbytes / bucket * seconds(call.op, bucket, group, call.copies)
        return cost
