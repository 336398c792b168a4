"""Where the ranks of a training are: the groups that share something, and the nodes that they are in."""

from ..training.settings import Settings
from .cost import Group
from .hardware import Hardware


def groups(settings: Settings, hardware: Hardware) -> dict[str, Group]:
    """Return the groups of `Collective.group`, except for stages. Raises ValueError if they do not fit the hardware."""
    hardware.shard_group(settings.world_size)
    tensor, experts, shards = settings.tensor_parallel, settings.expert_parallel, settings.shards
    sizes = {
        "tensor": (1, tensor), "context": (tensor, settings.context_parallel), "expert": (tensor, experts),
        "shard": (tensor, shards), "second shard": (tensor, settings.gathers_again or 1),
        "replica": (tensor * shards, settings.replicas), "expert shard": (tensor * experts, shards // experts or 1),
        "expert replica": (tensor * shards, settings.replicas) if settings.stage
        else (tensor * experts, settings.replicas // experts),
    }  # fmt: skip
    return {name: hardware.replica_group(*size) for name, size in sizes.items()}


def leaves_node(settings: Settings, devices: int) -> bool:
    """Return whether a rank of the planned stage has its peer of the stage before or after in a different node."""
    ranks, mine = settings.tensor_parallel * settings.data_parallel, settings.pipeline_stage
    places = [[(stage * ranks + rank) // devices for rank in range(min(ranks, devices))] for stage in (
        max(mine - 1, 0), mine, min(mine + 1, settings.pipeline_parallel - 1)
    )]  # fmt: skip
    return any(there != places[1] for there in places)
