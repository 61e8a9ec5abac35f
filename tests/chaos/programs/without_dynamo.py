"""Stands in for ``torch._dynamo``, which the first optimizer imports and which takes as long as torch itself.

For programs that compile nothing and start an interpreter. One that has imported it, as a fork has, keeps it.
"""

import sys
from types import ModuleType, SimpleNamespace

dynamo = ModuleType("torch._dynamo")
dynamo.disable = lambda call, *_, **__: call  # type: ignore[attr-defined]
dynamo.graph_break = lambda *_: None  # type: ignore[attr-defined]
# What groups of processes and DistributedDataParallel ask.
dynamo.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)  # type: ignore[attr-defined]
dynamo.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")  # type: ignore[attr-defined]
sys.modules.setdefault(dynamo.__name__, dynamo)
