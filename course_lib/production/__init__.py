"""DeepSpeed beside what the course builds: a configuration in words, and a training that runs it.

    production.explain({"zero_optimization": {"stage": 3}})     # needs neither torch nor DeepSpeed
    production.deepspeed_version()                              # None where it is not installed
    World(4, backend="processes").run(production.train, make_model, batch, loss, config, steps)
    production.universal(folder)                               # a checkpoint of it, for any number of ranks

explain -> faults -> settings;  deepspeed stands by itself
"""

from .deepspeed import deepspeed_version, train, universal
from .explain import Explanation, explain

__all__ = ["Explanation", "deepspeed_version", "explain", "train", "universal"]
