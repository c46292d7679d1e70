"""The page of `mhex demo`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mhex.cli._run import group_by_reason
from mhex.cli.models import accuracy_words

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.cli.demo import Look
    from mhex.viz import Section

INTRO = """
Two small networks that ship with mhex, a Vision Transformer and a residual network, look at two photos. Every method
that can serve a network explains what speaks for its favourite cat breed (first row) and for its favourite dog breed
(second row).

A map is a claim about the network, not about the photo, and methods disagree: which one to trust has to be measured
on your own model and data.
"""

COMMANDS = """mhex explain cat.jpg --model zoo:pets-vit --method gae,rollout --target top2
mhex methods
mhex models

import mhex
from PIL import Image

bundle = mhex.load("zoo:pets-vit")
explanation = mhex.explain(bundle, Image.open("cat.jpg"), method="gae", target="top2")
explanation.save("cat.png")"""


def demo_page(looks: Sequence[Look]) -> str:
    """The whole page: a section per photo and model, the models' cards, and how to go on.

    Args:
        looks: In the order of the page.
    """
    from mhex.viz import Section, page

    bundles = {look.bundle.name: look.bundle for look in looks}
    sections = [_look_section(look) for look in looks]
    sections += [_card_section(bundle) for bundle in bundles.values()]
    sections.append(Section("Do it yourself", f"<pre>{html.escape(COMMANDS)}</pre>"))
    return page("mhex: two networks explained", INTRO, sections)


def _look_section(look: Look) -> Section:
    from mhex.viz import Section, comparison, picture_tag

    opinion = _table(
        ("the model says", "probability"),
        [(f"{group} (all its breeds)", _percent(share)) for group, share in look.groups.items()]
        + [(name, _percent(share)) for name, share in look.favourites.items()],
    )
    parts = [opinion]
    explanations = look.outcome.explanations
    if explanations:
        classes = " and ".join(look.explained.values())
        names = ", ".join(e.method for e in explanations)
        alt = f"Heat maps over the photo of the {look.photo.name} for {classes}, by {names}"
        parts.append(picture_tag(comparison(explanations, columns=4), alt))
        parts.append(_table(("method", "seconds"), [(e.method, f"{e.cost['seconds']:.2f}") for e in explanations]))
    if look.outcome.left_out:
        grouped = group_by_reason(look.outcome.left_out)
        parts.append(_table(("left out", "why"), [(", ".join(names), why) for why, names in grouped.items()]))
    return Section(
        f"The {look.photo.name}, {look.bundle.name}", "\n".join(parts), f"{look.photo.note}\n\n{look.photo.source}"
    )


def _card_section(bundle: Bundle) -> Section:
    from mhex.viz import Section

    card = bundle.card
    rows = [
        ("what", card.get("title", "")),
        ("network", f"{card.get('architecture')}, {card.get('parameters', 0) / 1e6:.2f} million parameters"),
        ("accuracy", accuracy_words(card.get("accuracy"))),
        ("classes", ", ".join(bundle.class_names or ())),
        ("data", _words(card.get("data", ""))),
        ("recipe", _words(card.get("recipe", ""))),
        ("licence", _words(card.get("licence", ""))),
    ]
    return Section(f"Card of {bundle.name}", _table(("", ""), rows))


def _words(entry: Any) -> str:
    """An entry of a card as plain text, however deep it is."""
    if isinstance(entry, Mapping):
        return "; ".join(f"{key}: {_words(value)}" for key, value in entry.items())
    return ", ".join(map(_words, entry)) if isinstance(entry, (list, tuple)) else str(entry)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    first = f"<tr>{head}</tr>\n" if any(columns) else ""
    return f"<table>\n{first}{body}\n</table>"
