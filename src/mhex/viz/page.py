"""A whole HTML page from pieces: inline style, light and dark, narrow and wide screens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mhex._markup import escaped

# The page may show its own pictures and use its own style. Nothing else is loaded, whatever a section contains.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --paper: #fafaf8; --ink: #1c1c1c; --soft: #5c5c5c; --line: #e3e1dc; --card: #ffffff;
  --accent: #b4470e; }
@media (prefers-color-scheme: dark) { :root { --paper: #161718; --ink: #e8e6e3; --soft: #a3a09b; --line: #34363a;
  --card: #1f2123; --accent: #f0945a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.6 system-ui, -apple-system, "Segoe UI",
  sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem clamp(1rem, 4vw, 2.5rem) 4rem; }
h1 { font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 0 0 .8rem; line-height: 1.3; }
p { margin: 0 0 .8rem; max-width: 46rem; }
nav { margin: 1.2rem 0 0; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; font-size: .95rem; }
a { color: var(--accent); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; margin-top: 1.6rem;
  padding: clamp(1rem, 3vw, 1.6rem); overflow-x: auto; }
section > :last-child { margin-bottom: 0; }
.intro, .note { color: var(--soft); }
.intro { font-size: 1.06rem; }
.note { font-size: .92rem; margin-top: .9rem; }
img { display: block; max-width: 100%; height: auto; margin: .4rem 0 1rem; }
blockquote { margin: 0 0 1rem; padding-left: 1rem; border-left: 3px solid var(--line); }
table { margin: 0 0 1.1rem; border-collapse: collapse; font-size: .93rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
code, pre { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .6rem; }
.scroll { overflow-x: auto; margin-bottom: 1rem; }
.scroll table { margin: 0; border-collapse: separate; border-spacing: 0; }
.scroll th { vertical-align: bottom; }
.scroll td:not(:first-child) { white-space: nowrap; }
.scroll th:not(:first-child) { min-width: 6.5rem; }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; background: var(--card); }
.control, .control td { color: var(--soft); font-style: italic; }
tr:not(.control) + tr.control td { border-top: 3px double var(--line); }
summary { cursor: pointer; margin-bottom: .8rem; }
.small, .scroll + ul { font-size: .88rem; color: var(--soft); padding-left: 1.1rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1rem 1.6rem; }
.chart { margin: 0; }
figcaption { font-size: .9rem; font-weight: 600; margin-bottom: .3rem; }
.chart svg { display: block; width: 100%; max-width: 30rem; height: auto; font: 11px system-ui, sans-serif;
  fill: currentColor; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .axis { stroke: var(--soft); stroke-width: 1; }
.chart .soft { fill: var(--soft); }
.chart .mean { fill: var(--card); stroke: var(--ink); stroke-width: 1.2; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 0 0 1rem; font-size: .88rem; }
.key span { display: inline-flex; align-items: center; gap: .4rem; }
.key svg { width: 26px; height: 10px; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(clamp(5.2rem, 11vw, 8rem), 1fr)); gap: .7rem;
  margin-bottom: 1.4rem; }
.maps figure { margin: 0; }
.maps figcaption { font-size: .78rem; font-weight: 400; line-height: 1.25; margin: .25rem 0 0;
  overflow-wrap: anywhere; }
.maps img { width: 100%; margin: 0; border-radius: 6px; }
.maps .control img { outline: 2px dashed var(--soft); outline-offset: -2px; }
pre { overflow-x: auto; padding: .8rem 1rem; border: 1px solid var(--line); border-radius: 8px; }
"""


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Plain text.
        html: A piece of HTML, put in as it is: from `to_html`, `picture_tag` or `paragraphs`, never from strangers.
        note: Plain text below it; blank lines separate paragraphs.
    """

    title: str
    html: str
    note: str = ""


def page(title: str, intro: str, sections: Sequence[Section]) -> str:
    """A complete HTML page.

    Args:
        title: Plain text, also the name of the browser's tab.
        intro: Plain text; blank lines separate paragraphs.
        sections: Top to bottom; more than three get a list of links above them.
    """
    links = "".join(f'<a href="#s{n}">{escaped(s.title)}</a>' for n, s in enumerate(sections, 1))
    navigation = f"<nav>{links}</nav>\n" if len(sections) > 3 else ""
    body = "\n".join(_section(n, section) for n, section in enumerate(sections, 1))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escaped(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escaped(title)}</h1>\n{paragraphs(intro, 'intro')}\n{navigation}{body}\n</main>\n</body>\n</html>\n"
    )


def paragraphs(text: str, kind: str = "") -> str:
    """Plain text as escaped HTML paragraphs, one per block of lines.

    Args:
        text: Blank lines separate paragraphs.
        kind: A CSS class for them.
    """
    mark = f' class="{escaped(kind)}"' if kind else ""
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    return "\n".join(f"<p{mark}>{escaped(block)}</p>" for block in blocks)


def _section(number: int, section: Section) -> str:
    note = paragraphs(section.note, "note")
    return f'<section id="s{number}">\n<h2>{escaped(section.title)}</h2>\n{section.html}\n{note}\n</section>'
