"""Machines by name, each figure with its source. Bytes and FLOPs are decimal, links are one direction.

Bandwidths between GPUs are those that NCCL's own model expects, not the data sheet's. A data sheet's 80 GB is used
unchanged; the GPU has a little more, which is about the memory that CUDA itself and fragmentation take.
"""

from dataclasses import dataclass, replace

from ..training.checks import PlanError, pick, whole
from .cost import Group, Link

# Sources that several machines share. Latencies are NCCL's hwLat for a ring (src/graph/tuning.cc), by protocol: Simple,
# then LL128, which NCCL enables with NVLink on A100 and H100, or LL. Bandwidths of links are from src/graph/topo.h.
# Devices are NVIDIA's data sheets: dense bf16, half of the sparse figure. `achievable` and `attention` are fitted, see
# docs/validation.md: llm-foundry's MPT rows on one node, without checkpointing.
NVLINK = {"alpha": 3.4e-6, "small_alpha": 1.9e-6}
PCIE = {"alpha": 5.7e-6, "small_alpha": 1e-6, "small_share": 0.5}
NETWORK = {"alpha": 14e-6, "small_alpha": 4e-6}
NCCL_LAUNCH = 8.4e-6  # baseLat, ring, Simple
PCIE4 = 31.5e9  # 16 GT/s x 16 lanes x 128/130 / 8
PCIE5 = 63.0e9
FP8_GAIN = 0.5
"""The part of the data sheet's gain of fp8 over bf16 that training has, casts included."""


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
        fp8: peak FLOPs in 8 bits for each in bf16; 0 if there is no such unit.
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

    def fp8_speed(self) -> float:
        """Return how many times faster than in bf16 matrix products are in fp8. Raises ValueError without fp8."""
        if not self.fp8:
            raise PlanError(f"fp8 on {self.name}: it has no matrix units for 8 bits. Choose fp8='none', or an H100.")
        return 1 + FP8_GAIN * (self.fp8 - 1)

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
            raise PlanError(
                f"{ranks} ranks on {self.name}: that is one node with {self.devices} devices. Choose hardware with a "
                f"network, such as {', '.join(name for name, h in HARDWARE.items() if h.network)}, or fewer ranks."
            )
        if ranks > self.devices and ranks % self.devices:
            raise PlanError(
                f"{ranks} ranks on {self.name}: they fill no whole number of nodes of {self.devices} devices. "
                f"Choose a multiple of {self.devices}."
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
            members=members, nodes=replicas // members, inside=self.inside, across=across, launch=self.launch,
            switch=self.switch,
        )  # fmt: skip


def _hopper(name: str, memory_bytes: int, memory_bandwidth: float, network: Link | None = None) -> Hardware:
    """Return nodes of 8 H100 or H200, whose SXM data sheets differ in memory only."""
    return Hardware(
        name=name, devices=8, memory_bytes=memory_bytes, memory_bandwidth=memory_bandwidth,
        fast_flops=989e12, fp32_flops=67e12, achievable=0.56, attention=0.30, network=network, launch=NCCL_LAUNCH,
        # 20.6 GB/s x 18 NVLinks (data sheet: 450)
        inside=Link(**NVLINK, bandwidth=370.8e9),
        # NVLS: hwLat, and NVIDIA's blog on NCCL 2.18: about 480 GB/s on 8 H100
        switch=Link(alpha=25e-6, bandwidth=480e9),
        # MLPerf Inference v4.1, system H200-SXM-141GBx8: 32 x 64 GB; two sockets x 8 channels x DDR5-4800
        host_link=PCIE5, host_bytes=2 * 10**12, host_bandwidth=614.4e9, fp8=2,
    )  # fmt: skip


def _ampere(name: str, memory_bytes: int, memory_bandwidth: float, network: Link | None = None) -> Hardware:
    """Return nodes of 8 A100."""
    return Hardware(
        name=name, devices=8, memory_bytes=memory_bytes, memory_bandwidth=memory_bandwidth,
        fast_flops=312e12, fp32_flops=19.5e12, achievable=0.71, attention=0.54, network=network, launch=NCCL_LAUNCH,
        # 20 GB/s x 12 NVLinks (data sheet: 300)
        inside=Link(**NVLINK, bandwidth=240e9), switch=None,
        # DGX A100 640GB data sheet: 2 TB; two sockets x 8 channels x DDR4-3200
        host_link=PCIE4, host_bytes=2 * 10**12, host_bandwidth=409.6e9,
    )  # fmt: skip


# DGX data sheets: 8 ports x 200 Gb/s in A100 nodes, 400 Gb/s in H100 nodes. Ethernet: NCCL's NET_BW for 100 Gb/s.
_HDR, _NDR = Link(**NETWORK, bandwidth=200e9), Link(**NETWORK, bandwidth=400e9)
_ETHERNET = Link(**NETWORK, bandwidth=12e9)

_CX7 = Link(**NETWORK, bandwidth=72 * 50e9)


def _of_8(
    name: str, memory_bytes: int, memory_bandwidth: float, flops: tuple[float, float], link: float,
    network: Link | None = None, switch: float = 0, achievable: float = 0.56, attention: float = 0.3,
) -> Hardware:  # fmt: skip
    """Return nodes of 8 GPUs of 2024 and 2025, with fp8 at twice the rate of bf16."""
    return Hardware(
        name=name, devices=8, memory_bytes=memory_bytes, memory_bandwidth=memory_bandwidth, fast_flops=flops[0],
        fp32_flops=flops[1], fp8=2, achievable=achievable, attention=attention, network=network, launch=NCCL_LAUNCH,
        inside=Link(**NVLINK, bandwidth=link), switch=Link(alpha=25e-6, bandwidth=switch) if switch else None,
        host_link=PCIE5, host_bytes=2 * 10**12, host_bandwidth=614.4e9,
    )  # fmt: skip


# B200: DGX B200 data sheet, of 8: 1,440 GB, 64 TB/s, 36 PFLOPS in sparse bf16, 600 TFLOPS in fp32; NCCL's topo.h: 40.1
# GB/s x 18 NVLinks. Its switches: as many times H100's as its links. GB200 NVL72 data sheet, of 72: 13.4 TB, 576 TB/s,
# 360 PFLOPS in sparse bf16, 5,760 TFLOPS in fp32, 17 TB of LPDDR5X at 14 TB/s on 36 Grace, each with 450 GB/s to its
# two GPUs; a port of 400 Gb/s for each GPU. B200's and GB200's rates in training are assumed to be H100's.
# MI300X data sheet: 1,307.4 TFLOPS in bf16, 163.4 in fp32; rates in training fitted on one row, torchao's Llama 3 8B in
# bf16. MI355X: no data sheet was found. AMD at ISSCC 2026: 256 units x 8,192 FLOPs in fp8, half of it in bf16, at 2.4
# GHz; in fp32 as many units x 256. Both: RCCL's topo.h, 48 GB/s x 7 links; hosts and latencies are assumed.
_B200 = (2.25e15, 75e12)
_MI355X = (256 * 8192 * 2.4e9 / 2, 256 * 256 * 2.4e9)

HARDWARE = {
    "laptop": Hardware(  # assumed: 16 GB and 8 cores, a quarter of both for each rank
        name="a laptop with 8 cores for 4 simulated ranks", devices=4, memory_bytes=4 * 10**9,
        # measured: torch 2.13, 1024 x 1024 matmul on 2 cores of an AMD EPYC; most laptops have no bf16 units.
        # assumed: half of what a large matmul reaches
        fast_flops=184e9, fp32_flops=184e9, achievable=0.5, attention=0.5,
        # measured: all_reduce of 4 simulated ranks over gloo, to 16 MiB, 2 cores, launch included; lesson 09 fits yours
        inside=Link(alpha=0.31e-3, bandwidth=0.85e9), switch=None, network=None, launch=0.0,
        # JEDEC DDR5-5600, two channels: 89.6 GB/s, a quarter for each rank
        memory_bandwidth=22.4e9, host_link=22.4e9, host_bytes=16 * 10**9, host_bandwidth=89.6e9,
    ),
    "rtx-4090": Hardware(
        # NVIDIA Ada GPU architecture whitepaper (dense bf16, fp32 accumulate); achievable: assumed as on H100
        name="4x RTX 4090, PCIe", devices=4, memory_bytes=24 * 10**9, memory_bandwidth=1008e9,
        fast_flops=165.2e12, fp32_flops=82.6e12, achievable=0.56, attention=0.3,
        # 12 GB/s for PCIe 3.0 x16, doubled for 4.0
        inside=Link(**PCIE, bandwidth=24e9), switch=None, network=None, launch=NCCL_LAUNCH,
        # assumed: a workstation with 256 GB; 8 channels x DDR4-3200
        host_link=PCIE4, host_bytes=256 * 10**9, host_bandwidth=204.8e9,
    ),
    "rtx-5090": Hardware(
        # NVIDIA's specifications: 32 GB, 1,792 GB/s, 104.8 TFLOPS in fp32, 3,352 in sparse fp4, a sixteenth of which is
        # dense bf16 with fp32 accumulation, and an eighth fp8; the rest as for RTX 4090, with PCIe 5.0
        name="4x RTX 5090, PCIe", devices=4, memory_bytes=32 * 10**9, memory_bandwidth=1792e9,
        fast_flops=209.5e12, fp8=2, fp32_flops=104.8e12, achievable=0.56, attention=0.3,
        inside=Link(**PCIE, bandwidth=48e9), switch=None, network=None, launch=NCCL_LAUNCH,
        host_link=PCIE5, host_bytes=256 * 10**9, host_bandwidth=204.8e9,
    ),
    "a100": _ampere("8x A100 80GB, NVLink", 80 * 10**9, 2.039e12),
    "a100-infiniband": _ampere("nodes of 8x A100 80GB over InfiniBand", 80 * 10**9, 2.039e12, _HDR),
    "a100-40gb": _ampere("nodes of 8x A100 40GB over InfiniBand", 40 * 10**9, 1.555e12, _HDR),
    "h100": _hopper("8x H100 80GB, NVLink", 80 * 10**9, 3.35e12),
    "h200": _hopper("8x H200 141GB, NVLink", 141 * 10**9, 4.8e12),
    "h100-infiniband": _hopper("nodes of 8x H100 over InfiniBand", 80 * 10**9, 3.35e12, _NDR),
    "b200": _of_8("8x B200 180GB, NVLink", 180 * 10**9, 8e12, _B200, 721.8e9, None, 934e9),
    "b200-infiniband": _of_8("nodes of 8x B200 over InfiniBand", 180 * 10**9, 8e12, _B200, 721.8e9, _NDR, 934e9),
    "gb200-nvl72": replace(
        _of_8("racks of 72x GB200, NVLink", 186 * 10**9, 8e12, (2.5e15, 80e12), 721.8e9, _CX7, 934e9),
        devices=72, host_link=225e9, host_bytes=17 * 10**12, host_bandwidth=14e12,
    ),
    "mi300x": _of_8(
        "nodes of 8x MI300X over InfiniBand", 192 * 10**9, 5.3e12, (1307.4e12, 163.4e12), 336e9, _NDR, 0, 0.33, 0.18
    ),
    "mi355x": _of_8("nodes of 8x MI355X over InfiniBand", 288 * 10**9, 8e12, _MI355X, 336e9, _NDR, 0, 0.33, 0.18),
    "h100-ethernet": _hopper("nodes of 8x H100 over 100 Gb/s Ethernet", 80 * 10**9, 3.35e12, _ETHERNET),
}  # fmt: skip


def hardware(name: "str | Hardware") -> Hardware:
    """Return the machine called `name`; a `Hardware` is returned unchanged. Raises ValueError for an unknown name."""
    return name if isinstance(name, Hardware) else pick("hardware", name, HARDWARE)
