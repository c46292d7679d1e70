"""`mhex explain`: photos or texts in, pictures out, by several methods beside each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mhex import errors
from mhex._files import write_text
from mhex._printable import one_line
from mhex._progress import watched
from mhex._settings import check_that
from mhex.cli import _console, _parse
from mhex.cli._console import Step, complain
from mhex.errors import ArgumentError, MhexError, NotFiniteError, NotFiniteOutputError, by_reason

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.explanation import Explanation
    from mhex.inputs.photos import Window
    from mhex.targets import Target
    from mhex.viz import Canvas

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
# Why a method may be passed over where every method was asked for; other errors are mistakes, and are raised.
_CANNOT = (errors.UnsupportedModelError, errors.CaptureError, errors.MissingExtraError)
_MOST_COLUMNS = 40  # of methods beside each other in one picture


@dataclass(frozen=True)
class MethodResults:
    """Explanations of one input, and for each method left out the reason; `failed` are those that gave no number."""

    explanations: list[Explanation]
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, NotFiniteError] = field(default_factory=dict)


def explain_by(
    bundle: Bundle,
    item: Any,
    methods: Sequence[str],
    target: Target,
    step: Step,
    label: str,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    pass_over: bool = False,
    **shared: Any,
) -> MethodResults:
    """Explain one photo or text by several methods, a step each; `pass_over` leaves out those that cannot serve."""
    import mhex
    from mhex.auto import AUTO
    from mhex.methods import get_method

    outcome = MethodResults([])
    concepts = any(isinstance(part, mhex.Concept) for part in (target if isinstance(target, list) else [target]))
    for method in methods:
        step(f"{label}: {method}")
        if pass_over and concepts and method != AUTO and get_method(method).target == "class":
            outcome.left_out[method] = "it explains classes, not concepts"
            continue
        arguments = {"progress": watched(), **shared, **(options or {}).get(method, {})}
        try:
            outcome.explanations.append(mhex.explain(bundle, [item], method, target, **arguments))
        except _CANNOT as error:
            if not pass_over or isinstance(error, NotFiniteOutputError):  # the latter is the same for every method
                raise
            if isinstance(error, NotFiniteError):
                outcome.failed[method] = error
            # Methods that can serve the model are shown beside it anyway, so the short reason is enough.
            outcome.left_out[method] = error.reason if isinstance(error, errors.UnsupportedModelError) else str(error)
    return outcome


@dataclass(frozen=True)
class Item:
    """A photo or text to explain: the label of its files, its name for people, and its path or the text itself."""

    label: str
    name: str
    source: Path | str


@dataclass(frozen=True)
class Request:
    """What is wanted for every item: `arguments` are those of `explain_by`; `photos` must not be overwritten."""

    bundle: Bundle
    methods: list[str]
    target: Target
    window: Window | None
    arguments: dict[str, Any]
    out: Path
    photos: frozenset[Path]

    def explain(self, item: Item, step: Step) -> MethodResults:
        """Explain a photo or text by all methods."""
        try:
            opened = item.source if isinstance(item.source, str) else _parse.open_photo(item.source, self.window)
        except ArgumentError as error:
            raise _PhotoError(str(error)) from error
        outcome = explain_by(self.bundle, opened, self.methods, self.target, step, item.label, **self.arguments)
        if not outcome.explanations:
            if outcome.failed:
                raise next(iter(outcome.failed.values()))
            reasons = "; ".join(dict.fromkeys(outcome.left_out.values()))
            raise ArgumentError(f"No method can explain {self.bundle.name}: {reasons}.")
        return outcome

    def draw(self, drawing: Explanation | Canvas, name: str) -> str:
        """Draw into a file of the folder and give its path; one that would overwrite a photo is refused."""
        from mhex.viz import save_figure

        file = self.out / name
        if file.resolve() in self.photos:
            raise ArgumentError(f"The result would overwrite the photo {file}; choose another folder with --out.")
        with _console.writing(file):
            save_figure(drawing, file)
        return str(file)

    def save(self, item: Item, outcome: MethodResults) -> list[tuple[str, ...]]:
        """Write an item's pictures; one row of the table per method and target."""
        from mhex.viz import Canvas, comparison

        rows: list[tuple[str, ...]] = []
        for explanation in outcome.explanations:
            # Names of methods hold no dot, so no two labels and methods can give the same file.
            file = self.draw(explanation, f"{item.label}.{explanation.method}.png")
            if layers := explanation.by_layer():
                blocks = comparison([*layers.values(), explanation], labels=[*layers, "all"], paper=Canvas)
                self.draw(blocks, f"{item.label}.{explanation.method}.layers.png")
            names, words = explanation.target_names(0), [""]  # a model without a classifier has no target
            if explanation.values is not None:
                values = zip(explanation.target_values(0), explanation.target_probabilities(0), strict=True)
                words = [f"{value:.4g}" if share is None else f"{100 * share:.1f} %" for value, share in values]
            predicted = self.predicted(explanation)
            cells = zip(names, words, strict=True)
            rows += [(item.name, explanation.method, *cell, *predicted, file) for cell in cells]
        if len(outcome.explanations) > 1:
            canvas = comparison(outcome.explanations, columns=_MOST_COLUMNS, paper=Canvas)
            file = self.draw(canvas, f"{item.label}.comparison.png")
            rows.append((item.name, "all of these", "", "", *[""] * len(predicted), file))
        return rows

    def columns(self, explanation: Explanation) -> tuple[str, ...]:
        """Headings of the table's columns of targets and of what the model says of them."""
        predicted = ["predicted"] * len(self.predicted(explanation))
        if explanation.target is None:
            return "concept", "similarity", *predicted
        return ("output", "value") if explanation.task == "regression" else ("class", "probability", *predicted)

    def predicted(self, explanation: Explanation) -> list[str]:
        """The predicted class beside a target that was asked for; nothing where there is no target or prediction."""
        prediction = explanation.prediction(0)
        if self.target is None or prediction is None:
            return []
        return [f"{prediction[0]}, {100 * prediction[1]:.1f} %"]


def command(
    photos: Annotated[list[Path] | None, typer.Argument(metavar="PHOTO", help="Photos to explain.")] = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="A text to explain; may be repeated.")] = None,
    model: _parse.ModelOption = "zoo:pets-vit",
    method: Annotated[
        str, typer.Option("--method", help="Methods with commas between, auto for what suits the model, or all.")
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
    window: _parse.WindowOption = None,
    outputs: _parse.OutputsOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the pictures.")] = Path("out/explain"),
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Option of a method; may be repeated.")
    ] = None,
    device: _parse.DeviceOption = "cpu",
    seed: Annotated[int, typer.Option("--seed", help="For methods that draw random numbers.")] = 0,
    html: Annotated[bool, typer.Option("--html", help="Also write a page with all pictures in it.")] = False,
) -> None:
    """Explain why a model gives photos or texts their class: one picture per method, and a comparison of several."""
    items = _items(photos or [], text or [])
    with _console.busy(f"Loading {model}"):
        methods = _parse.parse_methods(method, auto=True)
        every = "all" in (name.strip() for name in method.split(","))
        arguments = {
            "options": _parse.parse_options(option or [], methods),
            "task": _parse.parse_task(task),
            "outputs": _parse.parse_outputs(outputs),
            "seed": seed,
            "pass_over": every or len(methods) > 1,  # one method that cannot serve does not cost the others
        }
        ends = _parse.parse_window(window)
        check_that(not text or ends is None, "--window beside photos", "--text", "; leave it out")
        _parse.check_device(device)
        out = _console.output_folder(out)
        bundle = _load(model, device, is_text=bool(text))
        from mhex.viz import Section, page, to_html
    sources = frozenset(item.source.resolve() for item in items if isinstance(item.source, Path))
    targets = _parse.parse_target(target, bundle.class_names)
    request = Request(bundle, methods, targets, ends, arguments, out, sources)
    rows: list[tuple[str, ...]] = []
    sections, left_out, remarks = [], dict[str, str](), []
    losses: dict[str, MhexError] = {}
    heads: tuple[str, ...] | None = None
    with (
        _console.stopping(lambda: _words_after_stop(items, {row[0] for row in rows}, out)),
        _console.without_repeated_warnings(),
        _console.steps(len(items) * len(methods)) as step,
    ):
        for item in items:
            try:
                outcome = request.explain(item, step)
            except MhexError as error:
                # Before anything was explained, only what belongs to this input alone is no mistake of the command.
                if heads is None and not isinstance(error, (_PhotoError, NotFiniteError, NotFiniteOutputError)):
                    raise
                losses[item.name] = error
                continue
            heads = request.columns(outcome.explanations[0])
            rows += request.save(item, outcome)
            remarks += _remarks(item, outcome)
            left_out |= {name: reason for name, reason in outcome.left_out.items() if name not in outcome.failed}
            losses |= {f"{item.name} by {name}": error for name, error in outcome.failed.items()}
            if html or text:
                reasons = by_reason(outcome.left_out).items()
                note = "\n\n".join(f"Left out {', '.join(names)}: {reason}" for reason, names in reasons)
                sections.append(Section(item.name, to_html(outcome.explanations), note))
    losses = _joined(losses)
    if heads is None:
        first = next(iter(losses.values()))
        raise ArgumentError(f"None of {len(items)} inputs can be explained: {first}") if len(items) > 1 else first
    for reason, names in by_reason(left_out).items():
        complain(f"left out {', '.join(names)}: {reason}")
    _console.show_table(bundle.name, ("input", "method", *heads, "file"), rows)
    for remark in remarks:  # beside the table, which other programs may read
        complain(remark)
    if sections:
        file = out / "index.html"
        write_text(page(f"Explained: {bundle.name}", bundle.card.get("warning", ""), sections), file)
        complain(f"Page: {file}.")
    if losses:
        for name, loss in losses.items():
            complain(f"not explained: {loss}" if name in str(loss) else f"not explained: {name}: {loss}")
        complain(f"The pictures of all others are in {out}.")
        raise typer.Exit(_console.LOSSES)


class _PhotoError(ArgumentError):
    """A photo that cannot be read."""


def _joined(lost: dict[str, MhexError]) -> dict[str, MhexError]:
    """The same losses; photos whose black and white are not known share one sentence, with the range over all."""
    from mhex.inputs.photos import UnknownWindowError

    unknown = {name: error.__cause__ for name, error in lost.items() if isinstance(error.__cause__, UnknownWindowError)}
    if len(unknown) < 2:
        return lost
    combined_error = UnknownWindowError.joined(list(unknown.values()))
    return {next(iter(unknown)): combined_error} | {name: error for name, error in lost.items() if name not in unknown}


def _words_after_stop(items: Sequence[Item], done: set[str], out: Path) -> str:
    """The sentence after Ctrl-C: what is kept, and how to go on."""
    if not done:
        return "Nothing is explained yet; the same command begins anew."
    missing = " ".join(item.name for item in items if item.name not in done)
    explained = f"{len(done)} of {len(items)} inputs are explained, with their pictures in {out}"
    return f"{explained}; to go on, give the others alone: {missing}"


def _items(photos: Sequence[Path], texts: Sequence[str]) -> list[Item]:
    came, advice = "both" if photos else "neither", ": mhex explain PHOTO..., or mhex explain --text TEXT --model MODEL"
    check_that(bool(photos) != bool(texts), "either photos or --text", came, advice)
    if texts:
        blank = next((number for number, text in enumerate(texts, 1) if not text.strip()), None)
        check_that(blank is None, "some text after each --text", f"a blank one as number {blank}")
        return [Item(f"text-{number}", _console.beginning(text), text) for number, text in enumerate(texts, 1)]
    # Missing photos are refused now, before the model is loaded; damaged ones are named at the end.
    for photo in photos:
        if not os.path.isfile(photo):  # also of names that the system does not take
            _parse.check_file(photo)
    labels = _console.unique_labels(photo.stem for photo in photos)
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


def _remarks(item: Item, outcome: MethodResults) -> list[str]:
    """What methods that were asked for measured of their own result, and where a text was cut; a line each."""
    lines = []
    for explanation in outcome.explanations:
        names = explanation.target_names(0)
        for name, measured in () if explanation.auto else explanation.diagnostics.items():
            if measured[0].numel() != len(names):
                continue  # such as one number per head
            gaps = zip(names, measured[0].reshape(-1).tolist(), explanation.target_values(0), strict=True)
            parts = ", ".join(f"{gap:.2g} for {target} (score {value:.4g})" for target, gap, value in gaps)
            lines.append(f"{item.name}, {explanation.method}: {name.replace('_', ' ')} {parts}")
    if cut := outcome.explanations[0].cut(0):
        lines.append(f"{item.label}: {cut}, all that the model can read")
    return lines
