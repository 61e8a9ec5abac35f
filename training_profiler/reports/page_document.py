"""The shell of a page: one HTML document with its style and scripts in it, which loads nothing."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from training_profiler.base.html import Html, element, joined, text
from training_profiler.base.text import printable_data

_SLOT: Final = re.compile(r"\{\{(\w+)\}\}")
_UNSAFE: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def document(title: str, subtitle: str, body: Html, data: Mapping[str, Any]) -> str:
    """Return the page with that body; ``data`` is what its charts draw."""
    scripts = [part_file("vendor/uPlot.iife.min.js"), part_file("page.js")]
    links = [element("a", name, href=f"#{id}") for id, name in re.findall(r'<h2 id="(\w+)-title">([^<]*)</h2>', body)]
    slots = {
        "title": text(title),
        "subtitle": text(subtitle),
        "policy": Html(" ".join(f"'sha256-{_digest(script)}'" for script in scripts)),
        "style": Html(part_file("vendor/uPlot.min.css") + part_file("page.css")),
        "links": joined(Html(link) for link in links),
        "body": body,
        "data": Html(_json(data)),
        "charts": Html(scripts[0]),
        "script": Html(scripts[1]),
        "license": Html(part_file("vendor/uPlot.LICENSE").replace("--", "- -")),
    }
    return _SLOT.sub(lambda slot: slots[slot[1]], part_file("page.html"))


@cache
def part_file(name: str) -> str:
    """Return a file of the folder ``page``."""
    return files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _json(data: Mapping[str, Any]) -> str:
    """Return data as JSON in which no text can end the script that it stands in."""
    return json.dumps(printable_data(data), allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
