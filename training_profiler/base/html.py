"""The few pieces of HTML that the page consists of. Every text that enters one is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from training_profiler.base.text import escaped


class Html(str):
    """Markup that is safe to put on the page as it is."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return any text as markup: nothing in it is a tag, an attribute or an invisible mark."""
    return value if isinstance(value, Html) else Html(escape(escaped(str(value))))


def element(tag: str, *content: object, **attributes: object) -> Html:
    """Return an element. An attribute ``class_`` is ``class``; one that is None is left out."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{given}>{''.join(map(text, content))}</{tag}>")


def joined(parts: Iterable[object]) -> Html:
    """Return parts one after the other."""
    return Html("".join(map(text, parts)))


def part(id: str, title: str, *content: object) -> Html:
    """Return a section of the page; nothing where there is no content."""
    body = joined(content)
    if not body:
        return Html("")
    heading = element("h2", title, id=f"{id}-title")
    return element("section", heading, body, id=id, aria_labelledby=f"{id}-title")


class Cell(NamedTuple):
    """A cell of a table: what it shows, and the number that it is sorted by."""

    shown: object
    number: float | None = None


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[Cell | object]]) -> Html:
    """Return a table whose columns can be sorted; nothing without rows. The first column heads its row."""
    if not rows:
        return Html("")
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    kinds = ["words" if any(map(_is_words, column)) else None for column in zip(*cells, strict=True)]
    head = (
        element("th", header and element("button", header, type="button"), scope="col", class_=kind)
        for header, kind in zip(headers, kinds, strict=True)
    )
    body = [
        element(
            "tr", *(_cell(cell, kind, is_head=not at) for at, (cell, kind) in enumerate(zip(row, kinds, strict=True)))
        )
        for row in cells
    ]
    whole = element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)
    )
    return element("div", whole, class_="wide", tabindex="0", role="region", aria_label=caption)


def _is_words(cell: Cell) -> bool:
    """Return whether a cell shows words, which begin on the left, and not a number with its unit."""
    shown = str(cell.shown)
    return cell.number is None and bool(shown) and shown[0] not in "0123456789+-.<>~"


def _cell(cell: Cell, kind: str | None, is_head: bool) -> Html:
    value = None if cell.number is None else f"{cell.number:.9g}"
    return element(
        "th" if is_head else "td", cell.shown, scope="row" if is_head else None, class_=kind, data_value=value
    )
