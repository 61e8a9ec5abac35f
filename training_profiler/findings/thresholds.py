"""Reading overridden thresholds: ``data-loading-bound=0.2,unexplained=0.15``."""

import difflib
from collections.abc import Collection, Mapping

from training_profiler.base.errors import SettingsError


def read_thresholds(given: object, known: Collection[str], example: str) -> dict[str, float]:
    """Return the threshold of each rule that ``given`` names, a mapping or a text such as ``unexplained=0.15``.

    Raises:
        SettingsError: a rule is not in ``known``, or a threshold is not a number of at least 0.
    """
    if isinstance(given, Mapping):
        pairs = [(str(code), value) for code, value in given.items()]
    else:
        parts = [part.partition("=") for part in str(given).split(",") if part.strip()]
        pairs = [(code, value) for code, _, value in parts]
    thresholds = {}
    for code, value in pairs:
        code = code.strip()
        if code not in known:
            close = difflib.get_close_matches(code, known, n=1, cutoff=0.0)
            raise SettingsError(f"names {code!r}, which is not a rule; did you mean {close[0]}? {example}")
        try:
            number = float(str(value))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise SettingsError(f"has {str(value)!r} for {code}, which is not a number >= 0; {example}")
        thresholds[code] = number
    return thresholds
