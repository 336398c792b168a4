"""The names of collectives that torch has since 2.13, for torch 2.11 and 2.12.

torch 2.13 renamed two functions, whose arguments stayed the same. Importing this module gives the functions of an older
torch the new names, in `torch.distributed` itself: the stages, and what learners write, say `dist.all_gather_single` on
every torch. It is here, in the lowest package that calls them; `parallel` and worlds import it, too.
"""

import torch.distributed as dist

_BEFORE = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}

for _name, _before in _BEFORE.items():
    if not hasattr(dist, _name):
        setattr(dist, _name, getattr(dist, _before))
