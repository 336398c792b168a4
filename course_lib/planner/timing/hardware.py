"""Machines by name, each figure with its source. Bytes and FLOPs are decimal, links are one direction.

Bandwidths between GPUs are those that NCCL's own model expects, not the data sheet's. A data sheet's 80 GB is used
unchanged; the GPU has a little more, which is about the memory that CUDA itself and fragmentation take.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ..training.checks import pick, whole
from .cost import Group, Link

DATASHEETS = {
    "RTX 4090": "NVIDIA Ada GPU architecture whitepaper, RTX 4090 (dense BF16, FP32 accumulate)",
    "A100": "NVIDIA A100 80GB SXM data sheet (dense BF16)",
    "H100": "NVIDIA H100 SXM data sheet (half of the sparse BF16 figure)",
    "H200": "NVIDIA H200 SXM data sheet (half of the sparse BF16 figure)",
}
_NCCL_LINKS = "NCCL src/graph/topo.h"
_NCCL_ALPHA = "NCCL src/graph/tuning.cc, hwLat, ring, Simple (LL): 3.4 (0.6) us NVLink, 5.7 (1) PCIe, 14 (2.7) network"
_NVLS = "NCCL src/graph/tuning.cc, hwLat, NVLS: 25 us; NVIDIA's blog on NCCL 2.18 and NVLS: about 480 GB/s on 8 H100"
_NCCL_LAUNCH = "NCCL src/graph/tuning.cc, baseLat, ring, Simple: 8.4 us"
_PCIE4 = "PCI Express 4.0: 16 GT/s x 16 lanes x 128/130 / 8"
_PCIE5 = "PCI Express 5.0: 32 GT/s x 16 lanes x 128/130 / 8"
_MPT_H100 = "fitted: llm-foundry's MPT rows on one node of 8 H100 without checkpointing; see docs/validation.md"
_MPT_A100 = "fitted: llm-foundry's MPT rows on one node of 8 A100 without checkpointing; see docs/validation.md"
_HOPPER_HOST = "MLPerf Inference v4.1, system H200-SXM-141GBx8: 32 x 64 GB; two sockets x 8 channels x DDR5-4800"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Equal devices in nodes. One rank has one device.

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
        host_bytes, host_bandwidth: of the node's memory; its devices share them.
        network: the node's network link, all its ports together; None if there is only one node.
        launch: seconds before the first message of a collective.
        switch: the switches of a node that add in an all-reduce, as NVSwitch does; None without them.
        sources: the source of each of these figures.
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
    sources: Mapping[str, str]

    def peak_flops(self, fast: bool) -> float:
        """Return the FLOPs per second of one device's data sheet, in bf16 or in fp32."""
        return self.fast_flops if fast else self.fp32_flops

    def shard_group(self, ranks: int) -> Group:
        """Return the group of `ranks` neighbours, node after node; errors as `replica_group`."""
        return self.replica_group(1, whole("world_size", ranks))

    def replica_group(self, shards: int, replicas: int) -> Group:
        """Return the group of the `replicas` ranks that hold the same one of `shards` shards: every `shards`-th rank.

        If a node has several such groups, they share its network link.

        Raises:
            ValueError: they fill no whole number of nodes, there is only one node, or the groups do not fit the nodes
                evenly.
        """
        ranks, rivals = shards * replicas, min(shards, self.devices)
        if ranks > self.devices and self.network is None:
            raise ValueError(
                f"{ranks} ranks on {self.name}: that is one node with {self.devices} devices. Choose hardware with a "
                f"network, such as {', '.join(name for name, h in HARDWARE.items() if h.network)}, or fewer ranks."
            )
        if ranks > self.devices and ranks % self.devices:
            raise ValueError(
                f"{ranks} ranks on {self.name}: they fill no whole number of nodes of {self.devices} devices. "
                f"Choose a multiple of {self.devices}."
            )
        if ranks > self.devices and self.devices % rivals:
            raise ValueError(
                f"{replicas} groups of {shards} neighbouring ranks on {self.name}: they do not fall evenly onto nodes "
                f"of {self.devices} devices. Choose tensor_parallel and shard_size so that their product divides "
                f"{self.devices}, or is a multiple of it."
            )
        members = min(replicas, self.devices // rivals)
        across = self.network and replace(self.network, bandwidth=self.network.bandwidth / rivals)
        return Group(
            members=members, nodes=replicas // members, inside=self.inside, across=across, launch=self.launch,
            switch=self.switch,
        )  # fmt: skip


def _nvidia(
    gpu: str, name: str, *, memory: float, bandwidth: float, fast: float, fp32: float, attention: float,
    achievable: tuple[float, str], link: tuple[float, float, float, str], host: tuple[float, str],
    host_memory: tuple[float, float, str], devices: int = 8, network: tuple[float, str] | None = None,
    switch: Link | None = None,
) -> Hardware:  # fmt: skip
    sheet = DATASHEETS[gpu]
    return Hardware(
        name=name, devices=devices, memory_bytes=int(memory), memory_bandwidth=bandwidth, fast_flops=fast,
        fp32_flops=fp32, achievable=achievable[0], attention=attention, switch=switch,
        inside=Link(alpha=link[0], small_alpha=link[1], bandwidth=link[2]), host_link=host[0],
        host_bytes=int(host_memory[0]), host_bandwidth=host_memory[1], launch=8.4e-6,
        network=Link(alpha=14e-6, small_alpha=2.7e-6, bandwidth=network[0]) if network else None,
        sources=MappingProxyType({
            "devices": "by definition of the name", "memory_bytes": sheet, "memory_bandwidth": sheet,
            "fast_flops": sheet, "fp32_flops": sheet, "achievable": achievable[1], "attention": achievable[1],
            "inside": f"{link[3]}; {_NCCL_ALPHA}", "host_link": host[1], "host_bytes": host_memory[2],
            "host_bandwidth": host_memory[2], "launch": _NCCL_LAUNCH, "switch": _NVLS if switch else "none that adds",
            "network": f"{network[1]}; {_NCCL_ALPHA}" if network else "one node only",
        }),
    )  # fmt: skip


def _hopper(name: str, gpu: str = "H100", network: tuple[float, str] | None = None) -> Hardware:
    memory, bandwidth = {"H100": (80e9, 3.35e12), "H200": (141e9, 4.8e12)}[gpu]
    return _nvidia(
        gpu, name, memory=memory, bandwidth=bandwidth, fast=989e12, fp32=67e12, achievable=(0.56, _MPT_H100),
        attention=0.30, switch=Link(alpha=25e-6, bandwidth=480e9), host=(63.0e9, _PCIE5),
        link=(3.4e-6, 0.6e-6, 370.8e9, f"{_NCCL_LINKS}: 20.6 GB/s x 18 NVLinks (data sheet: 450)"),
        host_memory=(2e12, 614.4e9, _HOPPER_HOST), network=network,
    )  # fmt: skip


def _ampere(name: str, memory: float = 80e9, network: tuple[float, str] | None = None) -> Hardware:
    return _nvidia(
        "A100", name, memory=memory, bandwidth=2.039e12 if memory > 40e9 else 1.555e12, fast=312e12, fp32=19.5e12,
        achievable=(0.71, _MPT_A100), attention=0.54, host=(31.5e9, _PCIE4), network=network,
        link=(3.4e-6, 0.6e-6, 240e9, f"{_NCCL_LINKS}: 20 GB/s x 12 NVLinks (data sheet: 300)"),
        host_memory=(2e12, 409.6e9, "NVIDIA DGX A100 640GB data sheet: 2 TB; two sockets x 8 channels x DDR4-3200"),
    )  # fmt: skip


HARDWARE = {
    "laptop": Hardware(
        name="a laptop with 8 cores for 4 simulated ranks", devices=4, memory_bytes=4 * 10**9,
        memory_bandwidth=22.4e9, fast_flops=184e9, fp32_flops=184e9, achievable=0.5, attention=0.5, switch=None,
        inside=Link(alpha=0.31e-3, bandwidth=0.85e9), host_link=22.4e9, host_bytes=16 * 10**9, host_bandwidth=89.6e9,
        network=None, launch=0.0,
        sources=MappingProxyType({
            "devices": "assumed: 4 ranks, two cores each",
            "memory_bytes": "assumed: a quarter of 16 GB",
            "memory_bandwidth": "JEDEC DDR5-5600, two channels: 89.6 GB/s, a quarter each",
            "fast_flops": "as fp32: most laptops have no bf16 units",
            "fp32_flops": "measured: torch 2.13, 1024 x 1024 matmul on 2 cores of an AMD EPYC",
            "achievable": "assumed: half of what a large matmul reaches",
            "attention": "assumed: as achievable",
            "switch": "none that adds",
            "inside": "measured: all_reduce of 4 simulated ranks over gloo, to 16 MiB, 2 cores; lesson 09 fits yours",
            "host_link": "the host's memory is the device's",
            "host_bytes": "assumed: 16 GB",
            "host_bandwidth": "JEDEC DDR5-5600, two channels",
            "network": "one node only",
            "launch": "within alpha",
        }),
    ),
    "rtx-4090": _nvidia(
        "RTX 4090", "4x RTX 4090, PCIe", devices=4, memory=24e9, bandwidth=1008e9, fast=165.2e12, fp32=82.6e12,
        achievable=(0.56, "assumed: as on H100"), attention=0.3, host=(31.5e9, _PCIE4),
        link=(5.7e-6, 1e-6, 24e9, f"{_NCCL_LINKS}: 12 GB/s for PCIe 3.0 x16, doubled for 4.0"),
        host_memory=(256e9, 204.8e9, "assumed: a workstation with 256 GB; 8 channels x DDR4-3200"),
    ),
    "a100": _ampere("8x A100 80GB, NVLink"),
    "a100-infiniband": _ampere(
        "nodes of 8x A100 80GB over InfiniBand", network=(200e9, "NVIDIA DGX A100 data sheet: 8 ports x 200 Gb/s")
    ),
    "a100-40gb": _ampere(
        "nodes of 8x A100 40GB over InfiniBand", 40e9, (200e9, "NVIDIA DGX A100 data sheet: 8 ports x 200 Gb/s")
    ),
    "h100": _hopper("8x H100 80GB, NVLink"),
    "h200": _hopper("8x H200 141GB, NVLink", "H200"),
    "h100-infiniband": _hopper(
        "nodes of 8x H100 over InfiniBand", network=(400e9, "NVIDIA DGX H100 data sheet: 8 ports x 400 Gb/s")
    ),
    "h100-ethernet": _hopper(
        "nodes of 8x H100 over 100 Gb/s Ethernet", network=(12e9, f"{_NCCL_LINKS}, NET_BW: 12 GB/s of 100 Gb/s")
    ),
}  # fmt: skip


def hardware(name: "str | Hardware") -> Hardware:
    """Return the machine called `name`; a `Hardware` is returned unchanged. Raises ValueError for an unknown name."""
    return name if isinstance(name, Hardware) else pick("hardware", name, HARDWARE)
