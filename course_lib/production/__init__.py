"""DeepSpeed beside what the course builds: a configuration in words, and a training that runs it.

    production.explain({"zero_optimization": {"stage": 3}})     # needs neither torch nor DeepSpeed
    production.deepspeed_version()                              # None where it is not installed
    World(4, backend="processes").run(production.train, make_model, batch, loss, config, steps)

explain -> faults -> settings;  deepspeed stands by itself
"""

from .deepspeed import deepspeed_version, train
from .explain import Explanation, explain

__all__ = ["Explanation", "deepspeed_version", "explain", "train"]
