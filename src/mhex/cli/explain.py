"""`mhex explain`: photos or texts in, pictures out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mhex._printable import one_line, printable
from mhex.cli._console import Step, beginning, busy, complain, say, show_table, steps
from mhex.cli._output import output_folder, unique_labels, writing
from mhex.cli._parse import check_device, parse_methods, parse_options, parse_target, parse_task
from mhex.cli._photos import check_file, open_photo
from mhex.cli._run import Outcome, explain_by, group_by_reason
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.explanation import Explanation
    from mhex.targets import Target, Task
    from mhex.viz import Section


EXAMPLES = """
mhex explain cat.jpg

mhex explain cat.jpg dog.jpg --method gae,rollout --target "Egyptian Mau,Pug" --html

mhex explain cat.jpg --model timm:resnet18:weights.safetensors --method all --target top3

mhex explain cat.jpg --method cdam,cdam-integrated --option steps=20 --target concept:whiskers.safetensors

mhex explain --text "A fine film." --model hf:my-bert --option start_block=2

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

    def open(self) -> Any:
        """A PIL image or a string."""
        return open_photo(self.source) if isinstance(self.source, Path) else self.source


@dataclass(frozen=True)
class Wish:
    """What is wanted for every item; the files in `keep`, the photos themselves, must not be written to."""

    methods: list[str]
    target: Target
    task: Task | None
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
        str, typer.Option("--method", help="Methods with commas between, or all; see `mhex methods`.")
    ] = "gae",
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
        methods = parse_methods(method)
        options = parse_options(option or [], methods)
        sort = parse_task(task)
        check_device(device)
        out = output_folder(out)
        bundle = _load(model, device, is_text=bool(text))
    every = "all" in (name.strip() for name in method.split(","))
    keep = frozenset(item.source.resolve() for item in items if isinstance(item.source, Path))
    wish = Wish(methods, parse_target(target, bundle.class_names), sort, options, seed, every, out, keep)
    rows, sections, left_out, said = [], [], dict[str, str](), []
    with steps(len(items) * len(methods)) as step:
        for item in items:
            outcome = _explain_item(bundle, item, wish, step)
            rows += _save(item, outcome, wish)
            said += [line for explanation in outcome.explanations for line in _diagnostics(item, explanation)]
            left_out |= outcome.left_out
            if html or text:
                sections.append(_section(item, outcome))
    for reason, names in group_by_reason(left_out).items():
        complain(f"left out {', '.join(names)}: {reason}")
    show_table(bundle.name, ("input", "method", *_columns(outcome.explanations[0]), "file"), rows)
    for line in said:
        say(line)
    if sections:
        say(f"Page: {_write_page(bundle, sections, out)}")


def _items(photos: Sequence[Path], texts: Sequence[str]) -> list[Item]:
    if bool(photos) == bool(texts):
        came = "both" if photos else "neither"
        raise ArgumentError(
            f"Expected either photos or --text, but got {came}: mhex explain PHOTO..., or "
            "mhex explain --text TEXT --model hf:FOLDER."
        )
    if texts:
        return [Item(f"text-{n}", beginning(text), text) for n, text in enumerate(texts, 1)]
    # Told now, not after the model is loaded and other photos are explained.
    for photo in photos:
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
        item.open(),
        wish.methods,
        wish.target,
        lambda what: step(f"{item.label}: {what}"),
        options=wish.options,
        task=wish.task,
        seed=wish.seed,
        pass_over=wish.every or len(wish.methods) > 1,  # the others are not lost for one that cannot serve
    )
    if not outcome.explanations:
        reasons = "; ".join(dict.fromkeys(outcome.left_out.values()))
        raise ArgumentError(f"No method can explain {bundle.name}: {reasons}.")
    return outcome


def _save(item: Item, outcome: Outcome, wish: Wish) -> list[tuple[str, str, str, str, str]]:
    """Write an item's pictures; one row of the table per method and target."""
    from mhex.viz import comparison, save_figure

    rows = []
    for explanation in outcome.explanations:
        # Names of methods hold no dot, so no two labels and methods can give the same file.
        file = _file(f"{item.label}.{explanation.method}.png", wish)
        with writing(file):
            save_figure(explanation, file)
        if layers := explanation.by_layer():
            single = _file(f"{item.label}.{explanation.method}.layers.png", wish)
            with writing(single):
                save_figure(comparison([*layers.values(), explanation], labels=[*layers, "all"]), single)
        for name, value, share in zip(
            explanation.target_names(0),
            explanation.target_values(0),
            explanation.target_probabilities(0),
            strict=True,
        ):
            shown = f"{value:.4g}" if share is None else f"{100 * share:.1f} %"
            rows.append((item.name, explanation.method, name, shown, str(file)))
    if len(outcome.explanations) > 1:
        file = _file(f"{item.label}.comparison.png", wish)
        with writing(file):
            save_figure(comparison(outcome.explanations, columns=_MOST_COLUMNS), file)
        rows.append((item.name, "all of these", "", "", str(file)))
    return rows


def _columns(explanation: Explanation) -> tuple[str, str]:
    """Headings of the table's columns of targets and of what the model says of them."""
    if explanation.target is None:
        return "concept", "similarity"
    return ("output", "value") if explanation.task == "regression" else ("class", "probability")


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
    with writing(file):
        text = page(f"Explained: {bundle.name}", bundle.card.get("warning", ""), sections)
        file.write_text(printable(text), encoding="utf-8")
    return file
