"""The top of the page: the verdict and the findings, with the lines of source code that they are about."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from training_profiler.base.html import Html, element, joined, part
from training_profiler.diagnosis import Finding
from training_profiler.reports.findings import REMARKS, important, saving_text, source_line
from training_profiler.reports.verdict import verdict
from training_profiler.snapshot.snapshot import Snapshot

PLACE: Final = re.compile(r"([^\s:()\"']+\.py):(\d{1,7})\b")


class Excerpt(NamedTuple):
    """Lines of a source file around one of them."""

    first: int  # number of the first line
    lines: tuple[str, ...]
    marked: int


def places(snapshot: Snapshot, findings: Sequence[Finding]) -> set[tuple[str, int]]:
    """Return the files and lines whose source the page shows."""
    return {place for finding in findings for place in _places(snapshot, finding)}


def _places(snapshot: Snapshot, finding: Finding) -> list[tuple[str, int]]:
    found = [(file, int(line)) for file, line in PLACE.findall(finding.message)]
    hottest = source_line(snapshot, finding)
    if hottest is not None:
        found.append((hottest[0].file, hottest[0].line))
    return list(dict.fromkeys(found))[:3]


def verdict_part(snapshot: Snapshot, findings: Sequence[Finding]) -> Html:
    """Return the verdict."""
    headline, detail, saving, color = verdict(snapshot, findings)
    rest = [element("p", words) for words in (detail, saving) if words]
    return element("div", element("p", headline, class_="headline"), *rest, class_=f"verdict {color}", role="status")


def findings_part(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    sources: Mapping[tuple[str, int], Excerpt],
    missing: Mapping[str, str],
) -> Html:
    """Return the findings to act on, each with its lines, then the others, and why files have no lines."""
    first = important(snapshot, findings)
    others = [finding for finding in findings if finding not in first and (finding.fix or finding.code not in REMARKS)]
    items = [_finding(snapshot, finding, sources) for finding in first]
    more = [_finding(snapshot, finding, sources) for finding in others]
    parts = [element("ol", *items, class_="findings")] if items else []
    if more:
        title = f"{len(more)} smaller {'remark' if len(more) == 1 else 'remarks'}"
        parts.append(element("details", element("summary", title), element("ul", *more, class_="findings")))
    if parts and missing:
        reasons = "; ".join(f"{file} ({why})" for file, why in sorted(missing.items()))
        parts.append(element("p", f"No lines of source code: {reasons}", class_="note"))
    return part("findings", "What to change", *parts)


def _finding(snapshot: Snapshot, finding: Finding, sources: Mapping[tuple[str, int], Excerpt]) -> Html:
    saving = f"could save {saving_text(snapshot, finding)}" if finding.potential_saving_s else ""
    content: list[object] = [element("p", finding.message, class_="message")]
    if saving:
        content.append(element("p", saving, class_="saving"))
    if finding.fix:
        content.append(element("p", "→ ", finding.advice, class_="fix"))
    content += _excerpts(snapshot, finding, sources)
    content.append(element("p", element("code", finding.code), class_="code"))
    return element("li", *content)


def _excerpts(snapshot: Snapshot, finding: Finding, sources: Mapping[tuple[str, int], Excerpt]) -> Iterator[Html]:
    for place in _places(snapshot, finding):
        excerpt = sources.get(place)
        if excerpt is None:
            continue
        rows = []
        for number, line in enumerate(excerpt.lines, start=excerpt.first):
            shown = joined([element("span", f"{number:>5} ", class_="number"), line.expandtabs(4) or " "])
            rows.append(element("mark" if number == excerpt.marked else "span", shown))
        title = element("figcaption", f"{place[0]}:{place[1]}")
        yield element("figure", title, element("pre", *rows, tabindex="0"), class_="source")
