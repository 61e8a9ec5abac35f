"""Moments that all ranks know: barriers of the program, and exchanges of gradients."""


class Meetings:
    """A bounded list of them; the same ones are kept on every rank."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []  # (key, enter, leave), ns of the wall clock
