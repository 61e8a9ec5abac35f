"""Links of the documentation work on GitHub and on the site; the entry pages stay short."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "PROFILING.md", *sorted((ROOT / "docs").rglob("*.md"))]
INLINE = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
DEFINITION = re.compile(r"^\[[^\]]+\]: (\S+)$", re.M)
USE = re.compile(r"\]\[([^\]]+)\]")
TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.S)


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "`code`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken(page: Path) -> Iterator[str]:
    text = page.read_text("utf-8")
    prose = without_code(text)
    for link in INLINE.findall(prose) + DEFINITION.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: {link}"
        elif anchor and anchor not in anchors(target):
            yield f"{page.relative_to(ROOT)}: {link} (no such heading)"
    defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.M))
    yield from (f"{page.relative_to(ROOT)}: [{name}]" for name in USE.findall(prose) if name not in defined)


def test_every_link_leads_to_a_file_and_a_heading_that_exist():
    assert [link for page in PAGES for link in broken(page)] == []


def test_every_page_of_the_site_is_in_the_contents():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    listed = {line for tree in TOCTREE.findall(index) for line in tree.splitlines() if line and line[0] != ":"}
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    assert listed == pages - {"index"}


def test_the_entry_of_the_guide_and_the_readme_stay_short():
    assert len((ROOT / "PROFILING.md").read_text("utf-8").splitlines()) <= 300
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 100


def test_no_page_names_a_path_of_somebodys_machine():
    named = re.compile(r"(?<![\w.])/(?:work|home|root|tmp|Users)/\S+")
    assert [(page.name, found) for page in PAGES for found in named.findall(page.read_text("utf-8"))] == []
