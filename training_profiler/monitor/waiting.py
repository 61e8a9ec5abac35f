"""Whether an instruction of the user's code is a call that waits for the device."""

import opcode
from types import CodeType
from typing import Final

WAITS: Final = frozenset(("item", "cpu", "tolist", "numpy", "synchronize"))
# Between the look-up of a method and its call without arguments there is nothing but these.
_BETWEEN: Final = frozenset(opcode.opmap[name] for name in ("CACHE", "PRECALL", "PUSH_NULL") if name in opcode.opmap)
_CACHE: Final = opcode.opmap["CACHE"]
_CALL: Final = opcode.opmap.get("CALL", -1)
_LOAD_METHOD: Final = opcode.opmap.get("LOAD_METHOD", -1)  # up to Python 3.11
_LOAD_ATTR: Final = opcode.opmap["LOAD_ATTR"]  # since 3.12 for both; the lowest bit of its argument tells which
_EXTENDED: Final = opcode.opmap["EXTENDED_ARG"]
_UNIT: Final = 2  # bytes an instruction: its code and its argument


def waits_in(code: CodeType, instruction: int) -> str:
    """Return the name of the method that the instruction at this offset calls, where that waits; else "".

    Only calls without arguments are known: ``loss.item()``, and not ``loss.to("cpu")``.
    """
    raw = code.co_code
    while 0 < instruction < len(raw) and raw[instruction] == _CACHE:  # where the call is of a Python function
        instruction -= _UNIT
    if not 0 <= instruction < len(raw) or raw[instruction] != _CALL or raw[instruction + 1]:
        return ""
    at = instruction - _UNIT
    while at >= 0 and raw[at] in _BETWEEN:
        at -= _UNIT
    if at < 0 or raw[at] not in (_LOAD_METHOD, _LOAD_ATTR):
        return ""
    argument = raw[at + 1]
    if raw[at - _UNIT] == _EXTENDED and at >= _UNIT:
        argument |= raw[at - _UNIT + 1] << 8
    index = argument if raw[at] == _LOAD_METHOD or _LOAD_METHOD >= 0 else argument >> 1
    name = code.co_names[index] if index < len(code.co_names) else ""
    return name if name in WAITS else ""
