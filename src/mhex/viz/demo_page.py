"""The page of `mhex demo`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mhex._printable import escaped
from mhex.cli._run import group_by_reason
from mhex.cli.models import accuracy_words

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.cli.demo import HeadsView, Opinion, PhotoView, TextView
    from mhex.viz import Section

HEADS = """
Each residual block of the network carries a head, a linear classifier on what the block adds up. Nothing was trained:
the heads were fitted in closed form (ridge regression) on the frozen network, whose own answers are the same as
without them. The accuracy is each head's own, on test photos. Early heads know little: what the first one says is
weak evidence, and so is its map.
"""

NEWS = """
The text is made up for this page. mhex shows what the heads on the first layers read, which need not be what the
network answers in the end: compare the table. The other methods explain the network.
"""

LAYERS = """
The map of each block, shallow to deep: its head's class weights times what flows through the block. Deeper blocks
know the breed better and see coarser. Each map has its own colour scale.
"""

COMBINED = """
All blocks together (mhex), without any gradient, beside two methods that need one. The blocks' maps are added as they
are, so a block with large values counts more than its accuracy deserves; the option layer_scale="max" gives each the
same range.
"""


def look_section(look: PhotoView) -> Section:
    """What one model makes of one photo, and its maps by every method."""
    from mhex.viz import Section, comparison, picture_tag

    opinion = table(
        ("the model says", "probability"),
        [(f"{group} (all its breeds)", percent(share)) for group, share in look.groups.items()]
        + [(name, percent(share)) for name, share in look.favourites.items()],
    )
    parts = [opinion]
    explanations = look.outcome.explanations
    if explanations:
        classes = " and ".join(look.explained.values())
        names = ", ".join(e.method for e in explanations)
        alt = f"Heat maps over the photo of the {look.photo.name} for {classes}, by {names}"
        parts.append(picture_tag(comparison(explanations, columns=4), alt))
        seconds = [f"{e.cost['seconds']:.2f}" for e in explanations]
        parts.append(table((), [("method", *(e.method for e in explanations)), ("seconds", *seconds)]))
    parts += _left_out(look.outcome.left_out)
    return Section(
        f"The {look.photo.name}, {look.bundle.name}", "\n".join(parts), f"{look.photo.note}\n\n{look.photo.source}"
    )


def heads_section(look: HeadsView) -> Section:
    """What the heads say, the maps of single blocks, and the combined map beside other methods."""
    from mhex.viz import Section, comparison, paragraphs, picture_tag

    classes = " and ".join(look.explanations[0].target_names(0))
    blocks = comparison(list(look.layers.values()), labels=list(look.layers))
    methods = comparison(look.explanations)
    parts = [
        paragraphs(HEADS),
        _opinions(look.opinions),
        paragraphs(LAYERS),
        picture_tag(blocks, f"Heat maps of the blocks {', '.join(look.layers)} for {classes}"),
        paragraphs(COMBINED),
        picture_tag(methods, f"Heat maps for {classes} by {', '.join(one.method for one in look.explanations)}"),
    ]
    return Section(
        f"What its heads say: the {look.photo.name}, {look.bundle.name}", "\n".join(parts), look.photo.source
    )


def news_section(number: int, reading: TextView) -> Section:
    """The model's opinion on a text, and its words highlighted by every method."""
    from mhex.viz import Section, to_html

    explanations = reading.outcome.explanations
    parts = [f"<blockquote>{escaped(reading.text)}</blockquote>", _opinions(reading.opinions)]
    if explanations:
        parts.append(f'<div style="margin-bottom:1.1rem">{to_html(explanations)}</div>')
    parts += _left_out(reading.outcome.left_out)
    return Section(f"News {number}, {reading.bundle.name}", "\n".join(parts), NEWS)


def _opinions(opinions: Sequence[Opinion]) -> str:
    rows = [
        (
            one.name,
            "not measured" if one.accuracy is None else percent(one.accuracy),
            ", ".join(f"{name} {percent(share)}" for name, share in one.favourites.items()),
        )
        for one in opinions
    ]
    return table(("head of", "right on the test split", "says here"), rows)


def _left_out(left_out: Mapping[str, str]) -> list[str]:
    if not left_out:
        return []
    rows = [(", ".join(names), why) for why, names in group_by_reason(left_out).items()]
    return [table(("left out", "why"), rows)]


def percent(share: float) -> str:
    """A share in words: `71.2 %`."""
    return f"{100 * share:.1f} %"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table of plain texts; no head if all columns have no name."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    first = f"<tr>{head}</tr>\n" if any(columns) else ""
    return f"<table>\n{first}{body}\n</table>"


INTRO = """
Small networks that ship with mhex look at photos and read news. Every method that can serve a network explains what
speaks for its answer: of the photos, for its favourite cat breed (first row) and its favourite dog breed (second row);
of the news, for the two most probable topics. In between, heads on the blocks of a network say what each block knows.

A map is a claim about the network, not about the photo, and methods disagree: which one to trust has to be measured
on your own model and data.
"""

COMMANDS = """mhex explain cat.jpg --model zoo:pets-vit --target top2
mhex explain --text "The club sold its software." --model zoo:agnews-mhex-minilm --method auto,mhex
mhex methods
mhex models

import mhex
from PIL import Image

bundle = mhex.load("zoo:pets-vit")
explanation = mhex.explain(bundle, Image.open("cat.jpg"), target="top2")
explanation.save("cat.png")

scaffold = mhex.attach(model, num_classes, preset="probe", relu="pre")   # heads on a network of yours
print(scaffold.fit(loader))                                              # in closed form; no prediction changes
mhex.explain(model, images, method="mhex", per_layer=True).layers        # a map of every block"""


def demo_page(looks: Sequence[PhotoView], heads: HeadsView, readings: Sequence[TextView]) -> str:
    """The whole page: a section per photo and model, the heads, the news, the models' cards, and how to go on.

    Args:
        looks: At photos, in the order of the page.
        heads: What the heads of a network say of a photo.
        readings: Of texts, in the order of the page.
    """
    from mhex.viz import Section, page

    shown = [*(look.bundle for look in looks), heads.bundle, *(reading.bundle for reading in readings)]
    bundles = {bundle.name: bundle for bundle in shown}
    sections = [look_section(look) for look in looks]
    sections.append(heads_section(heads))
    sections += [news_section(number, reading) for number, reading in enumerate(readings, 1)]
    sections += [_card_section(bundle) for bundle in bundles.values()]
    sections.append(Section("Do it yourself", f"<pre>{escaped(COMMANDS)}</pre>"))
    return page("mhex: networks explained", INTRO, sections)


def _card_section(bundle: Bundle) -> Section:
    from mhex.viz import Section

    card = bundle.card
    # The settings are in the recipe that the command names; here they would fill a screen.
    recipe = {key: value for key, value in card.get("recipe", {}).items() if key != "settings"}
    rows = [
        ("what", card.get("title", "")),
        ("network", f"{card.get('architecture')}, {card.get('parameters', 0) / 1e6:.2f} million parameters"),
        ("accuracy", accuracy_words(card.get("accuracy"))),
        ("classes", ", ".join(bundle.class_names or ())),
        ("data", _words(card.get("data", ""))),
        ("recipe", _words(recipe)),
        ("licence", _words(card.get("licence", ""))),
    ]
    return Section(f"Card of {bundle.name}", table(("", ""), rows))


def _words(entry: Any) -> str:
    """An entry of a card as plain text, however deep it is."""
    if isinstance(entry, Mapping):
        return "; ".join(f"{key}: {_words(value)}" for key, value in entry.items())
    return ", ".join(map(_words, entry)) if isinstance(entry, (list, tuple)) else str(entry)
