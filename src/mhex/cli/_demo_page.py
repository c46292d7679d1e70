"""The page of `mhex demo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mhex._markup import escaped
from mhex.cli._demo_sections import heads_section, look_section, news_section, table
from mhex.cli.models import accuracy_words

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.cli._demo_heads import HeadsLook
    from mhex.cli._demo_news import Reading
    from mhex.cli.demo import Look
    from mhex.viz import Section

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


def demo_page(looks: Sequence[Look], heads: HeadsLook, readings: Sequence[Reading]) -> str:
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
