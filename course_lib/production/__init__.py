"""DeepSpeed, compared with what the course builds: an explanation of its configuration, and a training that runs it.

    production.explain({"zero_optimization": {"stage": 3}})     # needs neither torch nor DeepSpeed
    production.deepspeed_version()                              # None if it is not installed
    World(4, backend="processes").run(production.train, make_model, batch, loss, config, steps)
    production.universal(folder)                               # makes its checkpoint fit any number of ranks

`train.py`, `finetune.py` and `zero_recipe.py` are whole programs, which a lesson runs.

explain -> faults -> settings;  deepspeed has no imports from the others
"""

from .deepspeed import deepspeed_version, train, universal
from .explain import Explanation, explain
from .recorded import recorded_steps

__all__ = ["Explanation", "deepspeed_version", "explain", "recorded_steps", "train", "universal"]
