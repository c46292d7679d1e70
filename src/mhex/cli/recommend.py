"""`mhex recommend`: which method to use on a model and its data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mhex._settings import check_that
from mhex.cli import _parse
from mhex.cli._console import LOSSES, busy, complain, output_folder, say, stopping, without_repeated_warnings
from mhex.errors import ArgumentError

EXAMPLES = """
mhex recommend --model zoo:pets-vit --data pets --budget 120
mhex recommend --model timm:resnet18:weights.safetensors --data folder:photos --budget "5 min" --out out/recommend
mhex recommend --model zoo:pets-vit --data csv:photos.csv --score faithfulness=1,stability=1 --method gae,lrp,gradcam
mhex recommend --model zoo:pets-vit --data pets --score insertion
"""


def command(
    model: _parse.ModelOption,
    data: Annotated[
        str, typer.Option("--data", help="A data set by name, a folder of photos by class, or a CSV file.")
    ],
    budget: Annotated[str, typer.Option("--budget", help='Seconds, or "2 min".')] = "120",
    score: Annotated[
        str,
        typer.Option("--score", help="removal, balanced, weights of the parts of one as NAME=WEIGHT,..., or a metric."),
    ] = "removal",
    method: Annotated[str, typer.Option("--method", help="Methods to race, with commas between, or all.")] = "all",
    images: Annotated[
        int | None, typer.Option("--images", min=1, help="The most images.", show_default="as the budget allows")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Of the data set.", show_default="the one to judge by")
    ] = None,
    window: _parse.WindowOption = None,
    outputs: _parse.OutputsOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the answer as a page with pictures, and all rows.")
    ] = None,
    device: _parse.DeviceOption = "cpu",
    seed: Annotated[int, typer.Option("--seed", help="Of the sample, and of whatever is drawn.")] = 0,
) -> None:
    """Race the methods on a model and a sample of its data, and say which one to use, how sure that is and its cost."""
    with busy(f"Loading {model}"):
        import mhex
        from mhex.judge.store import remarks
        from mhex.recommend.answer import PAGE, check_folder
        from mhex.recommend.race import seconds_of

        seconds_of(budget)
        arguments: Any = {
            "methods": "all" if method.strip() == "all" else _parse.parse_methods(method),
            "score": parse_score(score),
            "images": images,
            "outputs": _parse.parse_outputs(outputs),
            "seed": seed,
        }
        _parse.check_device(device)
        if out is not None:
            check_folder(output_folder(out))
        items = items_of(data, split, _parse.parse_window(window))
        bundle = mhex.load(model)
        bundle.model.to(device)
    words = "A race has no answer before its end, so nothing is kept; the same command begins anew."
    with stopping(lambda: words), without_repeated_warnings():
        answer = mhex.recommend(bundle, items, budget, **arguments, out=out)
    say(answer)
    if out is not None:
        say(f"Page: {out / PAGE}")
    if answer.lost:
        complain(" ".join(remarks("", answer.lost)))
        raise typer.Exit(LOSSES)


def parse_score(text: str) -> str | Mapping[str, float]:
    """A metric by name, or weights, `faithfulness=1,stability=0.5`."""
    if "=" not in text:
        return text.strip()
    pairs = [pair.partition("=") for pair in text.split(",")]
    try:
        return {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        raise ArgumentError(f"Expected --score NAME=WEIGHT with commas between, but got {text!r}.") from None


def items_of(name: str, split: str | None = None, window: tuple[float, float] | None = None) -> Any:
    """Samples of a data set by name, of `folder:PATH` or `csv:PATH`, or of a path that exists."""
    from mhex.lab.datasets import data_entry, load_csv, load_folder

    kind, _, place = name.partition(":")
    path = Path(place if place and kind in ("folder", "csv") else name).expanduser()
    if path.is_dir():
        return load_folder(path, split or "all", window=window).items()
    if path.is_file():
        return load_csv(path, split or "all", window=window).items()
    check_that(window is None or kind in ("folder", "csv"), "a folder or a CSV file beside --window", name)
    scaling: Any = {} if window is None else {"window": window}
    return data_entry(name).items(split, **scaling)
