"""Machines by name, from hardware.csv, with their sources. Bytes and FLOPs are decimal, links are one direction.

Bandwidths between GPUs are those that NCCL's own model expects, not the data sheet's. A data sheet's 80 GB is used
unchanged; the GPU has a little more, which is about the memory that CUDA itself and fragmentation take.
`achievable` and `attention` are fitted on llm-foundry's MPT rows on one node, without checkpointing.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..training.checks import PlanError, known, rows, whole
from .cost import Group, Link

LINKS = {
    "nvlink": {"alpha": 3.4e-6, "small_alpha": 1.9e-6},
    "pcie": {"alpha": 5.7e-6, "small_alpha": 1e-6, "small_share": 0.5},
    "network": {"alpha": 14e-6, "small_alpha": 4e-6},
    "simulated": {"alpha": 0.31e-3},
}
"""Latencies: NCCL's hwLat for a ring (src/graph/tuning.cc), by protocol: Simple, then LL128, which NCCL enables with
NVLink on A100 and H100, or LL. Simulated ranks: measured, see the row of the laptop."""
NCCL_LAUNCH = 8.4e-6  # baseLat, ring, Simple
SWITCH_ALPHA = 25e-6  # NVLS: hwLat
FP8_GAIN = 0.5
"""The part of the data sheet's gain of fp8 over bf16 that training has, casts included: chosen on torchao's Llama 3 8B
on 8 H100, where float8 with float8 gathers is 1.25 times as fast as bf16."""

RATES_OF_2025: dict[str, Any] = {"achievable": 0.75, "attention": 0.6}
"""Rates on H100, H200 and Blackwell with software of 2025 and at full power, where the table has those of 2023.

Chosen on NVIDIA's dense runs and KempnerForge's FSDP, whose medians are within 7 % with them: see docs/validation.md.
"""

_POSITIVE = ("devices", "memory_bytes", "memory_bandwidth", "fast_flops", "fp32_flops", "achievable", "attention",
             "host_link", "host_bandwidth")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Equal devices in nodes. One rank has one device.

    Raises ValueError for a rate or a size that is not above 0.

    Attributes:
        name: for texts.
        devices: in one node.
        memory_bytes: of one device.
        memory_bandwidth: bytes per second, of one device's memory.
        fast_flops, fp32_flops: peak FLOPs per second of one device, in bf16 and in fp32 matrices.
        achievable: the fraction of the peak that matrix products reach in training, without communication.
        attention: the same of attention, whose masked half is counted as if it were computed.
        inside: the link from a device to its neighbour in the node.
        host_link: bytes per second between one device and the host's memory.
        host_bytes, host_bandwidth: of a host's memory; its devices share them.
        host_devices: devices of one host, if a node has several hosts; 0 if it has one.
        network: the node's network link, all its ports together; None if there is only one node.
        launch: seconds before the first message of a collective.
        switch: the switches of a node that add in an all-reduce, as NVSwitch does; None without them.
        fp8: peak FLOPs in 8 bits for each in bf16; 0 if there is no such unit.
        source: where these numbers are published, or that they are assumed.
    """

    name: str
    devices: int
    memory_bytes: int
    memory_bandwidth: float
    fast_flops: float
    fp32_flops: float
    achievable: float
    attention: float
    inside: Link
    host_link: float
    host_bytes: int
    host_bandwidth: float
    network: Link | None
    launch: float
    switch: Link | None
    fp8: float = 0
    host_devices: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not (isinstance(value := getattr(self, name), int | float) and value > 0):
                raise PlanError(f"{name}={value!r} of {self.name}: it has to be a number above 0.")

    def fp8_speed(self) -> float:
        """Return how many times faster than in bf16 matrix products are in fp8. Raises ValueError without fp8."""
        if not self.fp8:
            raise PlanError(f"fp8 on {self.name}: it has no matrix units for 8 bits. Choose fp8='none', or an H100.")
        return 1 + FP8_GAIN * (self.fp8 - 1)

    def peak_flops(self, fast: bool) -> float:
        """Return the FLOPs per second of one device's data sheet, in bf16 or in fp32."""
        return self.fast_flops if fast else self.fp32_flops

    def sharing(self, ranks: int) -> int:
        """Return how many of so many neighbouring ranks share a host's memory."""
        return min(self.host_devices or self.devices, self.devices, ranks)

    def shard_group(self, ranks: int) -> Group:
        """Return the group of `ranks` neighbours, node after node.

        Raises:
            ValueError: they fill no whole number of nodes; and as `replica_group`.
        """
        ranks = whole("world_size", ranks)
        group = self.replica_group(1, ranks)
        if ranks > self.devices and ranks % self.devices:
            raise PlanError(
                f"{ranks} ranks on {self.name}: they fill no whole number of nodes of {self.devices} devices. "
                f"Choose a multiple of {self.devices}."
            )
        return group

    def replica_group(self, shards: int, replicas: int) -> Group:
        """Return the group of the `replicas` ranks that hold the same one of `shards` shards: every `shards`-th rank.

        If a node has several such groups, they share its network link. A group that fills no whole number of nodes,
        such as a pipeline stage of 12 ranks, is timed as if its last node were full, which takes a little longer.

        Raises:
            ValueError: there is only one node, or the groups do not fit the nodes evenly.
        """
        ranks, rivals = shards * replicas, min(shards, self.devices)
        if ranks > self.devices and self.network is None:
            raise PlanError(
                f"{ranks} ranks on {self.name}: that is one node with {self.devices} devices. Choose fewer ranks, or "
                f"hardware with a network, such as {', '.join(name for name, h in HARDWARE.items() if h.network)}."
            )
        if ranks > self.devices and self.devices % rivals:
            raise PlanError(
                f"{replicas} groups of {shards} neighbouring ranks on {self.name}: they do not fall evenly onto nodes "
                f"of {self.devices} devices. Choose tensor_parallel and shard_size so that their product divides "
                f"{self.devices}, or is a multiple of it."
            )
        members = min(replicas, self.devices // rivals)
        across = self.network and replace(self.network, bandwidth=self.network.bandwidth / rivals)
        return Group(
            members=members, nodes=-(-replicas // members), inside=self.inside, across=across, launch=self.launch,
            switch=self.switch,
        )  # fmt: skip


def _machine(row: dict[str, str]) -> Hardware:
    numbers: dict[str, Any] = {one.name: one.type(float(row[one.name])) for one in fields(Hardware)
                               if one.type in (int, float) and one.name in row}  # fmt: skip
    network, switch = row["network"], row["switch"]
    return Hardware(
        name=row["name"], source=row["source"], **numbers,
        inside=Link(**LINKS[row["links"]], bandwidth=float(row["inside"])),
        network=Link(**LINKS["network"], bandwidth=float(network)) if network else None,
        switch=Link(alpha=SWITCH_ALPHA, bandwidth=float(switch)) if switch else None,
        launch=0.0 if row["links"] == "simulated" else NCCL_LAUNCH,
    )  # fmt: skip


HARDWARE = {row["key"]: _machine(row) for row in rows(Path(__file__).with_suffix(".csv"))}


def hardware(name: "str | Hardware") -> Hardware:
    """Return the machine called `name`; a `Hardware` is returned unchanged. Raises ValueError for an unknown name."""
    if isinstance(name, Hardware):
        return name
    known("hardware", name, HARDWARE)
    return HARDWARE[name]
