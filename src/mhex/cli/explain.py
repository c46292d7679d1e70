"""`mhex explain`: photos or texts in, pictures out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mhex._files import write_text
from mhex._printable import one_line
from mhex.cli._console import (
    LOSSES,
    Step,
    beginning,
    busy,
    complain,
    output_folder,
    show_table,
    steps,
    stopping,
    told_once,
    unique_labels,
    writing,
)
from mhex.cli._parse import (
    OUTPUTS,
    check_device,
    parse_methods,
    parse_options,
    parse_outputs,
    parse_target,
    parse_task,
    parse_window,
)
from mhex.cli._photos import check_file, open_photo
from mhex.cli._run import Outcome, explain_by, group_by_reason
from mhex.errors import ArgumentError, MhexError, NotFiniteError, NotFiniteOutputError

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.capture import Outputs
    from mhex.explanation import Explanation
    from mhex.inputs.photos import Window
    from mhex.targets import Target, Task
    from mhex.viz import Section


EXAMPLES = """
mhex explain cat.jpg

mhex explain cat.jpg dog.jpg --method gae,rollout --target "Egyptian Mau,Pug" --html

mhex explain cat.jpg --model timm:resnet18:weights.safetensors --method all --target top3

mhex explain cat.jpg --method cdam,cdam-integrated --option steps=20 --target concept:whiskers.safetensors

mhex explain scan.png --model run:my-scans --window=0,4095

mhex explain --text "A fine film." --model hf:my-bert --method gae --option start_block=2

mhex explain --text "A fine film." --model hf:my-stars --task regression --method cdam

A concept is a file that mhex.Concept.save wrote; several have commas between, each with concept: before it.
"""
_MOST_COLUMNS = 40  # of methods beside each other in one picture


@dataclass(frozen=True)
class Item:
    """A photo or text to explain: the label of its files, its name for people, and where it is."""

    label: str
    name: str
    source: Path | str

    def open(self, window: Window | None) -> Any:
        """A PIL image, seen through the range, or a string."""
        if isinstance(self.source, str):
            return self.source
        try:
            return open_photo(self.source, window)
        except ArgumentError as error:
            raise _PhotoError(str(error)) from error


@dataclass(frozen=True)
class Wish:
    """What is wanted for every item; the files in `keep`, the photos themselves, must not be written to."""

    methods: list[str]
    target: Target
    task: Task | None
    window: Window | None
    outputs: Outputs | None
    options: dict[str, dict[str, Any]]
    seed: int
    every: bool
    out: Path
    keep: frozenset[Path]


def explain(
    photos: Annotated[list[Path] | None, typer.Argument(metavar="PHOTO", help="Photos to explain.")] = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="A text to explain; may be repeated.")] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="zoo:NAME, timm:NAME[:weights.safetensors], hf:FOLDER or run:FOLDER.")
    ] = "zoo:pets-vit",
    method: Annotated[
        str,
        typer.Option("--method", help="Methods with commas between, auto for what suits the model, or all."),
    ] = "auto",
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="Classes by name or number with commas between, top3, or concept:FILE.safetensors.",
            show_default="the predicted class",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help="classification, multi-label or regression: what the model's outputs are.",
            show_default="as the model says",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            "--window",
            metavar="LOW,HIGH",
            help="Values that are black and white, of photos of more than 8 bits.",
            show_default="as the file says",
        ),
    ] = None,
    outputs: Annotated[str | None, OUTPUTS] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the pictures.")] = Path("out/explain"),
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Option of a method; may be repeated.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option("--seed", help="For methods that draw random numbers.")] = 0,
    html: Annotated[bool, typer.Option("--html", help="Also write a page with all pictures in it.")] = False,
) -> None:
    """Explain why a model gives photos or texts their class: one picture per method, and a comparison of several."""
    items = _items(photos or [], text or [])
    with busy(f"Loading {model}"):
        methods = parse_methods(method, auto=True)
        options = parse_options(option or [], methods)
        sort, read = parse_task(task), parse_outputs(outputs)
        ends = parse_window(window)
        if text and ends is not None:
            raise ArgumentError("Expected --window beside photos, but got --text; leave it out.")
        check_device(device)
        out = output_folder(out)
        bundle = _load(model, device, is_text=bool(text))
    every = "all" in (name.strip() for name in method.split(","))
    keep = frozenset(item.source.resolve() for item in items if isinstance(item.source, Path))
    wish = Wish(methods, parse_target(target, bundle.class_names), sort, ends, read, options, seed, every, out, keep)
    rows: list[tuple[str, ...]] = []
    sections, left_out, said = [], dict[str, str](), []
    lost: dict[str, MhexError] = {}
    heads: tuple[str, ...] | None = None
    with (
        stopping(lambda: _words_after_stop(items, {row[0] for row in rows}, out)),
        told_once(),
        steps(len(items) * len(methods)) as step,
    ):
        for item in items:
            try:
                outcome = _explain_item(bundle, item, wish, step)
            except MhexError as error:
                # Before anything was explained, only what belongs to this input alone is no mistake of the command.
                if heads is None and not isinstance(error, (_PhotoError, NotFiniteError, NotFiniteOutputError)):
                    raise
                lost[item.name] = error
                continue
            heads = _columns(outcome.explanations[0], wish)
            rows += _save(item, outcome, wish)
            asked = [explanation for explanation in outcome.explanations if not explanation.auto]
            said += [line for explanation in asked for line in _diagnostics(item, explanation)]
            if cut := outcome.explanations[0].cut(0):
                said.append(f"{item.label}: {cut}, all that the model can read")
            left_out |= {name: why for name, why in outcome.left_out.items() if name not in outcome.failed}
            lost |= {f"{item.name} by {name}": error for name, error in outcome.failed.items()}
            if html or text:
                sections.append(_section(item, outcome))
    if heads is None:
        first = next(iter(lost.values()))
        raise ArgumentError(f"None of {len(items)} inputs can be explained: {first}") if len(items) > 1 else first
    for why, names in group_by_reason(left_out).items():
        complain(f"left out {', '.join(names)}: {why}")
    show_table(bundle.name, ("input", "method", *heads, "file"), rows)
    for line in said:  # beside the table, which other programs may read
        complain(line)
    if sections:
        complain(f"Page: {_write_page(bundle, sections, out)}.")
    if lost:
        for name, reason in lost.items():
            complain(f"not explained: {reason}" if name in str(reason) else f"not explained: {name}: {reason}")
        complain(f"The pictures of all others are in {out}.")
        raise typer.Exit(LOSSES)


class _PhotoError(ArgumentError):
    """A photo that cannot be read."""


def _words_after_stop(items: Sequence[Item], done: set[str], out: Path) -> str:
    """What is kept after Ctrl-C, and how to go on."""
    if not done:
        return "Nothing is explained yet; the same command begins anew."
    rest = " ".join(item.name for item in items if item.name not in done)
    return (
        f"{len(done)} of {len(items)} inputs are explained, with their pictures in {out}; to go on, give the others "
        f"alone: {rest}"
    )


def _items(photos: Sequence[Path], texts: Sequence[str]) -> list[Item]:
    if bool(photos) == bool(texts):
        came = "both" if photos else "neither"
        raise ArgumentError(
            f"Expected either photos or --text, but got {came}: mhex explain PHOTO..., or "
            "mhex explain --text TEXT --model hf:FOLDER."
        )
    if texts:
        if blank := [number for number, text in enumerate(texts, 1) if not text.strip()]:
            raise ArgumentError(f"Expected some text after each --text, but number {blank[0]} is blank.")
        return [Item(f"text-{n}", beginning(text), text) for n, text in enumerate(texts, 1)]
    # Told now, not after the model is loaded and other photos are explained. What is damaged is told at the end.
    for photo in photos:
        if not os.path.isfile(photo):  # also of names that the system does not take
            check_file(photo)
    labels = unique_labels(photo.stem for photo in photos)
    return [Item(label, one_line(photo), photo) for label, photo in zip(labels, photos, strict=True)]


def _load(name: str, device: str, is_text: bool) -> Bundle:
    import mhex

    bundle = mhex.load(name)
    if is_text and bundle.tokenizer is None:
        raise ArgumentError(f"{name} reads photos, not text; give photos, or a text classifier with --model hf:FOLDER.")
    if not is_text and bundle.preprocess is None:
        raise ArgumentError(f"{name} reads text, not photos; give --text, or an image classifier with --model.")
    if warning := bundle.card.get("warning"):
        complain(f"warning: {warning}")
    bundle.model.to(device)
    return bundle


def _explain_item(bundle: Bundle, item: Item, wish: Wish, step: Step) -> Outcome:
    outcome = explain_by(
        bundle,
        item.open(wish.window),
        wish.methods,
        wish.target,
        lambda what: step(f"{item.label}: {what}"),
        options=wish.options,
        task=wish.task,
        outputs=wish.outputs,
        seed=wish.seed,
        pass_over=wish.every or len(wish.methods) > 1,  # the others are not lost for one that cannot serve
    )
    if not outcome.explanations:
        if outcome.failed:
            raise next(iter(outcome.failed.values()))
        reasons = "; ".join(dict.fromkeys(outcome.left_out.values()))
        raise ArgumentError(f"No method can explain {bundle.name}: {reasons}.")
    return outcome


def _save(item: Item, outcome: Outcome, wish: Wish) -> list[tuple[str, ...]]:
    """Write an item's pictures; one row of the table per method and target."""
    from mhex.viz import comparison, save_figure

    rows: list[tuple[str, ...]] = []
    for explanation in outcome.explanations:
        # Names of methods hold no dot, so no two labels and methods can give the same file.
        file = _file(f"{item.label}.{explanation.method}.png", wish)
        with writing(file):
            save_figure(explanation, file)
        if layers := explanation.by_layer():
            single = _file(f"{item.label}.{explanation.method}.layers.png", wish)
            with writing(single):
                save_figure(comparison([*layers.values(), explanation], labels=[*layers, "all"]), single)
        if explanation.values is None:  # a model without a classifier has no target
            empty = [""] * (1 + len(_predicted(explanation, wish)))
            rows.append((item.name, explanation.method, explanation.target_names(0)[0], *empty, str(file)))
            continue
        for name, value, share in zip(
            explanation.target_names(0),
            explanation.target_values(0),
            explanation.target_probabilities(0),
            strict=True,
        ):
            shown = f"{value:.4g}" if share is None else f"{100 * share:.1f} %"
            rows.append((item.name, explanation.method, name, shown, *_predicted(explanation, wish), str(file)))
    if len(outcome.explanations) > 1:
        file = _file(f"{item.label}.comparison.png", wish)
        with writing(file):
            save_figure(comparison(outcome.explanations, columns=_MOST_COLUMNS), file)
        empty = [""] * len(_predicted(explanation, wish))
        rows.append((item.name, "all of these", "", "", *empty, str(file)))
    return rows


def _columns(explanation: Explanation, wish: Wish) -> tuple[str, ...]:
    """Headings of the table's columns of targets and of what the model says of them."""
    predicted = ["predicted"] * len(_predicted(explanation, wish))
    if explanation.target is None:
        return "concept", "similarity", *predicted
    return ("output", "value") if explanation.task == "regression" else ("class", "probability", *predicted)


def _predicted(explanation: Explanation, wish: Wish) -> list[str]:
    """The predicted class beside a target that was asked for; nothing where no target was, or the model has none."""
    found = explanation.prediction(0)
    return [] if wish.target is None or found is None else [f"{found[0]}, {100 * found[1]:.1f} %"]


def _diagnostics(item: Item, explanation: Explanation) -> list[str]:
    """What a method found out about its own result, a line each."""
    lines = []
    for name, found in explanation.diagnostics.items():
        if found[0].numel() != len(explanation.target_names(0)):
            continue  # such as one number per head
        of = zip(explanation.target_names(0), found[0].reshape(-1).tolist(), explanation.target_values(0), strict=True)
        parts = ", ".join(f"{gap:.2g} for {target} (score {value:.4g})" for target, gap, value in of)
        lines.append(f"{item.name}, {explanation.method}: {name.replace('_', ' ')} {parts}")
    return lines


def _file(name: str, wish: Wish) -> Path:
    file = wish.out / name
    if file.resolve() in wish.keep:
        raise ArgumentError(f"The result would overwrite the photo {file}; choose another folder with --out.")
    return file


def _section(item: Item, outcome: Outcome) -> Section:
    from mhex.viz import Section, to_html

    grouped = group_by_reason(outcome.left_out)
    left_out = "\n\n".join(f"Left out {', '.join(names)}: {reason}" for reason, names in grouped.items())
    return Section(item.name, to_html(outcome.explanations), left_out)


def _write_page(bundle: Bundle, sections: Sequence[Section], out: Path) -> Path:
    from mhex.viz import page

    file = out / "index.html"
    write_text(page(f"Explained: {bundle.name}", bundle.card.get("warning", ""), sections), file)
    return file
