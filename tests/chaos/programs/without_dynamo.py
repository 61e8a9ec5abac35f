"""Stands in for ``torch._dynamo``, which the first optimizer imports and which takes as long as torch itself.

For programs that compile nothing and start an interpreter. One that has imported it, as a fork has, keeps it.
"""

import sys
from types import ModuleType

dynamo = ModuleType("torch._dynamo")
dynamo.disable = lambda call, *_, **__: call  # type: ignore[attr-defined]
dynamo.graph_break = lambda *_: None  # type: ignore[attr-defined]
sys.modules.setdefault(dynamo.__name__, dynamo)
