"""Which modules can be trained: those with a parameter that wants a gradient. Losses and frozen teachers cannot."""

from typing import Any, Final

MOST_MODULES: Final = 100_000
LOOKED_AT_EACH: Final = 64  # calls after which a frozen module is looked at again


class Trainable:
    """Remembers modules by id alone: nothing is left on them, and they live no longer for it."""

    def __init__(self) -> None:
        self._trainable: set[int] = set()
        self._frozen: dict[int, int] = {}  # id -> calls since it was found to be frozen

    def is_trainable(self, module: Any) -> bool:
        """Return whether any parameter of ``module`` requires a gradient, or has at an earlier call."""
        if not module._modules and not module._parameters:
            return False
        key = id(module)
        if key in self._trainable:
            return True
        if type(module).__module__.startswith("torch.nn.utils.param"):  # computes a weight whenever one looks at it
            return False
        calls = self._frozen.get(key, 0)
        if calls >= 8 and calls % LOOKED_AT_EACH:  # looking through all parameters of a large model takes 0.1 ms
            self._frozen[key] = calls + 1
            return False
        if len(self._trainable) + len(self._frozen) > MOST_MODULES:
            self._trainable.clear()
            self._frozen.clear()
        # In train mode it is only frozen for a moment, as a discriminator while its generator learns.
        if any(parameter.requires_grad or module.training for parameter in module.parameters()):
            self._trainable.add(key)
            self._frozen.pop(key, None)
            return True
        self._frozen[key] = calls + 1
        return False

    @property
    def is_any(self) -> bool:
        """Whether any module was found to be trainable so far."""
        return bool(self._trainable)

    def was_trained(self, module: int) -> bool:
        """Return whether the module with this id was found trainable at this or an earlier call."""
        return module in self._trainable


def is_bare(module: Any) -> bool:
    """Return whether ``module`` has no parameter at all, as most losses."""
    return not module._parameters and (not module._modules or next(module.parameters(), None) is None)
