"""The page of `mhex demo`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mhex.cli._run import group_by_reason
from mhex.cli.models import accuracy_words
from mhex.viz.figures import comparison
from mhex.viz.pages import Section, page, part, picture_tag, to_html

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.cli.demo import HeadsView, Opinion, PhotoView, TextView

_TEMPLATE = "demo.html"
_INTRO = """
Small networks that ship with mhex look at photos and read news. Every method that can serve a network explains what
speaks for its answer: of the photos, for its favourite cat breed (first row) and its favourite dog breed (second row);
of the news, for the two most probable topics. In between, heads on the blocks of a network say what each block knows.

A map is a claim about the network, not about the photo, and methods disagree: which one to trust has to be measured
on your own model and data.
"""


def demo_page(looks: Sequence[PhotoView], heads: HeadsView, readings: Sequence[TextView]) -> str:
    """The whole page: a section per photo and model, the heads, the news, the models' cards, and how to go on.

    Args:
        looks: At photos, in the order of the page.
        heads: What the heads of a network say of a photo.
        readings: Of texts, in the order of the page.
    """
    return page("mhex: networks explained", _INTRO, list(_sections(looks, heads, readings)))


def _sections(looks: Sequence[PhotoView], heads: HeadsView, readings: Sequence[TextView]) -> Iterator[Section]:
    yield from map(_look_section, looks)
    yield _heads_section(heads)
    for number, reading in enumerate(readings, 1):
        html = part(
            "news",
            _TEMPLATE,
            text=reading.text,
            rows=_opinions(reading.opinions),
            words=to_html(reading.outcome.explanations) if reading.outcome.explanations else "",
            omitted=_omitted(reading.outcome.left_out),
        )
        yield Section(f"News {number}, {reading.bundle.name}", html)
    bundles = [*(look.bundle for look in looks), heads.bundle, *(reading.bundle for reading in readings)]
    yield from map(_card_section, {bundle.name: bundle for bundle in bundles}.values())
    yield Section("Do it yourself", part("commands", _TEMPLATE))


def _look_section(look: PhotoView) -> Section:
    """What one model makes of one photo, and its maps by every method."""
    explanations, maps = look.outcome.explanations, ""
    names = [entry.method for entry in explanations]
    if explanations:
        classes = " and ".join(look.explained.values())
        alt = f"Heat maps over the photo of the {look.photo.name} for {classes}, by {', '.join(names)}"
        maps = picture_tag(comparison(explanations, columns=4), alt)
    groups = {f"{group} (all its breeds)": share for group, share in look.groups.items()}
    html = part(
        "photo",
        _TEMPLATE,
        shares=[(name, _percent(share)) for name, share in {**groups, **look.favourites}.items()],
        maps=maps,
        seconds=[("method", *names), ("seconds", *(f"{entry.cost['seconds']:.2f}" for entry in explanations))],
        omitted=_omitted(look.outcome.left_out),
    )
    title = f"The {look.photo.name}, {look.bundle.name}"
    return Section(title, html, f"{look.photo.note}\n\n{look.photo.source}")


def _heads_section(look: HeadsView) -> Section:
    """What the heads say, the maps of single blocks, and the combined map beside other methods."""
    classes = " and ".join(look.explanations[0].target_names(0))
    blocks = comparison(list(look.layers.values()), labels=list(look.layers))
    names = ", ".join(entry.method for entry in look.explanations)
    html = part(
        "heads",
        _TEMPLATE,
        rows=_opinions(look.opinions),
        layers=picture_tag(blocks, f"Heat maps of the blocks {', '.join(look.layers)} for {classes}"),
        combined=picture_tag(comparison(look.explanations), f"Heat maps for {classes} by {names}"),
    )
    return Section(f"What its heads say: the {look.photo.name}, {look.bundle.name}", html, look.photo.source)


def _card_section(bundle: Bundle) -> Section:
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
    return Section(f"Card of {bundle.name}", part("table", head=(), rows=rows))


def _opinions(opinions: Sequence[Opinion]) -> list[tuple[str, str, str]]:
    return [
        (
            opinion.name,
            "not measured" if opinion.accuracy is None else _percent(opinion.accuracy),
            ", ".join(f"{name} {_percent(share)}" for name, share in opinion.favourites.items()),
        )
        for opinion in opinions
    ]


def _omitted(left_out: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(", ".join(names), reason) for reason, names in group_by_reason(left_out).items()]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _words(entry: Any) -> str:
    """An entry of a card as plain text, however deep it is."""
    if isinstance(entry, Mapping):
        return "; ".join(f"{key}: {_words(value)}" for key, value in entry.items())
    return ", ".join(map(_words, entry)) if isinstance(entry, (list, tuple)) else str(entry)
