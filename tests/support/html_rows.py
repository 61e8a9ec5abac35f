"""The texts in the tables of a page."""

from html.parser import HTMLParser
from typing import Any


class _Rows(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def rows_in(page: str) -> list[list[str]]:
    """Return the texts of the cells of each row."""
    parser = _Rows()
    parser.feed(page)
    parser.close()
    return parser.rows
