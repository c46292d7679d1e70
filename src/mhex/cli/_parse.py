"""The options that commands share, and the way from typed text to methods, targets, options, photos and devices."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from mhex._settings import check_that
from mhex.errors import ArgumentError, MhexError, unknown_name

if TYPE_CHECKING:
    from PIL.Image import Image

    from mhex.capture import Outputs
    from mhex.inputs.photos import Window
    from mhex.registry import Method
    from mhex.targets import Target, Task

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="zoo:NAME, timm:NAME[:weights.safetensors], hf:FOLDER or run:FOLDER.")
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="LOW,HIGH",
        help="Values that are black and white, of photos of more than 8 bits.",
        show_default="as the file says",
    ),
]
OutputsOption = Annotated[
    str | None,
    typer.Option("--outputs", help="logits or probabilities: what the model returns.", show_default="recognised"),
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:1.")]
# A closed list: PIL would also hand EPS files, which are programs, to an interpreter.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
_FORMAT_NAMES = "PNG, JPEG, WebP, BMP, GIF, TIFF, PPM, JPEG 2000, AVIF"
_CONCEPT = "concept:"
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def parse_methods(text: str, auto: bool = False) -> list[str]:
    """Names of methods, `a,b`, each checked; `all` gives every method, and `auto` may be allowed."""
    from mhex.auto import AUTO
    from mhex.methods import all_methods

    methods = all_methods()
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ArgumentError("Expected at least one method after --method, e.g. gradcam, or gae,rollout, or all.")
    if "all" in names:
        return list(methods)
    for name in names:
        if name not in methods and not (auto and name == AUTO):
            raise unknown_name("method", name, methods)
    return list(dict.fromkeys(names))


def parse_target(text: str | None, class_names: Sequence[str] | None) -> Target:
    """A target: None, a class number or name, `top3`, a list with commas, or `concept:FILE`; class names come first."""
    if text is None:
        return None
    names = {name.casefold() for name in class_names or ()}
    if text.strip().casefold() in names:
        return text.strip()
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    if not pieces:
        raise ArgumentError("Expected a class after --target: a name, a number, several with commas, or top3.")
    unnamed = [piece for piece in pieces if piece.casefold() not in names]
    if concepts := [piece for piece in unnamed if piece.startswith(_CONCEPT)]:
        return _concepts(concepts, len(pieces), text)
    classes = [int(piece) if piece in unnamed and re.fullmatch(r"\d+", piece) else piece for piece in pieces]
    if len(classes) == 1:
        return classes[0]
    if top := [piece for piece in unnamed if re.fullmatch(r"top\d+", piece)]:
        raise ArgumentError(f"Expected {top[0]} alone or a list of classes after --target, but got both: {text!r}.")
    return classes


def _concepts(pieces: Sequence[str], count: int, text: str) -> Target:
    """The concepts of some of `count` targets."""
    from mhex.concept import Concept

    kinds = f"classes alone, or concepts alone (each {_CONCEPT}FILE), after --target"
    check_that(len(pieces) == count, kinds, f"both: {text!r}")
    paths = [piece.removeprefix(_CONCEPT).strip() for piece in pieces]
    check_that(all(paths), f"a file after {_CONCEPT}, e.g. --target {_CONCEPT}fur.safetensors", "none")
    concepts = [Concept.load(path) for path in paths]
    return concepts if len(concepts) > 1 else concepts[0]


def parse_task(text: str | None) -> Task | None:
    """The kind of the model's outputs; None if the model is to say it."""
    from mhex.targets import Task

    return _choice(text, get_args(Task), "--task", ", ")


def parse_outputs(text: str | None) -> Outputs | None:
    """The form of the model's outputs; None if it is to be recognised."""
    from mhex.capture import Outputs

    return _choice(text, get_args(Outputs), "--outputs", " or ")


def _choice(text: str | None, choices: Sequence[str], option: str, separator: str) -> Any | None:
    check_that(text is None or text in choices, f"{separator.join(choices)} after {option}", repr(text))
    return text


def parse_window(text: str | None) -> Window | None:
    """Two numbers with a comma between, `0,4095`; None without them."""
    from mhex.inputs.photos import check_window

    if text is None:
        return None
    try:
        ends = tuple(float(end) for end in text.split(","))
    except ValueError:
        ends = ()
    check_that(len(ends) == 2, "two numbers with a comma between after --window, such as 0,4095", repr(text))
    return check_window(ends)


def parse_options(pairs: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options `key=value` of each method, typed by their defaults; an option goes to every method that has it."""
    from mhex.auto import AUTO
    from mhex.methods import get_method

    choices: dict[str, dict[str, Any]] = {name: {} for name in methods}
    if pairs and AUTO in methods:
        raise ArgumentError("Expected --method with --option, because options are those of a method: name it.")
    specs = {name: get_method(name) for name in methods if name != AUTO}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        check_that(bool(equals and key), "--option key=value, e.g. --option start_block=2", repr(pair))
        owners = [name for name in methods if key in specs[name].options]
        if not owners:
            options = sorted({f"{k}={v}" for spec in specs.values() for k, v in spec.options.items()})
            raise ArgumentError(
                f"None of the chosen methods ({', '.join(methods)}) has an option {key!r}. Their options: "
                f"{', '.join(options) or 'none'}."
            )
        for name in owners:
            choices[name][key] = _typed(specs[name], key, value)
    return choices


def _typed(method: Method, key: str, value: str) -> Any:
    """`value` in the type of the option's default; where the signature allows a number beside None or a word, that."""
    default = method.options[key]
    if value.lower() == "none" and default is None:
        return None
    parameter = inspect.signature(method.function).parameters.get(key)
    allowed = str(parameter.annotation) if parameter is not None else ""
    if isinstance(default, bool) or allowed == "bool | None":
        check_that(value.lower() in (*_YES, *_NO), f"true or false for the option {key!r}", repr(value))
        return value.lower() in _YES
    for kind, words in ((int, "a whole number"), (float, "a number")):
        if isinstance(default, kind) or re.search(rf"\b{kind.__name__}\b", allowed):
            try:
                return kind(value)
            except ValueError:
                # A word may be meant only where the signature knows words, or a wider kind of number comes next.
                if (type(default) is kind and "str" not in allowed) or allowed == f"{kind.__name__} | None":
                    raise ArgumentError(f"Expected {words} for the option {key!r}, but got {value!r}.") from None
    return value


def check_device(device: str) -> str:
    """A device that torch can use here: `cpu`, `cuda` or `cuda:1`."""
    import torch

    named = re.fullmatch(r"cpu|cuda(:\d+)?", device) is not None
    check_that(named, "cpu or cuda after --device", repr(device))
    count = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    here = device == "cpu" or int(device.partition(":")[2] or 0) < count
    check_that(here, "a device that is here", f"{device!r} and {count} CUDA devices", "; use cpu")
    return device


def open_photo(path: str | PathLike[str], window: Window | None = None) -> Image:
    """Open a photo as people see it: turned by its EXIF orientation, in RGB, transparency over white."""
    from PIL import Image, UnidentifiedImageError

    from mhex.inputs.photos import BROKEN, MOST_PIXELS, claims_too_much, upright_rgb

    path = Path(path)
    check_file(path)
    # Small files that unpack to huge pictures are a known attack.
    most = f"{MOST_PIXELS // 10**6} million pixels, or more than its bytes hold"
    too_large = ArgumentError(f"The photo {path} claims more than {most}, and was not opened; shrink it first.")
    Image.init()
    with warnings.catch_warnings():
        # PIL warns of large photos and of odd tags; the limit below decides, and the tags do not matter here.
        warnings.simplefilter("ignore")
        try:
            # Older versions of PIL cannot open AVIF.
            with Image.open(path, formats=[name for name in FORMATS if name in Image.OPEN]) as photo:
                if claims_too_much(photo, path.stat().st_size):
                    raise too_large
                return upright_rgb(photo, window, f"The photo {path}")
        except MhexError:
            raise
        except Image.DecompressionBombError as error:
            raise too_large from error
        except UnidentifiedImageError as error:
            raise ArgumentError(f"Expected a photo ({_FORMAT_NAMES}), but {path} is none of these.") from error
        except BROKEN as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise ArgumentError(f"The photo {path} is damaged or cut off ({reason}).") from error


def check_file(path: Path) -> None:
    """Refuse a file that cannot be a photo without decoding it: missing, a folder, unreadable, empty."""
    try:
        if path.is_file():
            with path.open("rb") as file:
                problem = "" if file.read(1) else "is empty (0 bytes)"
        else:
            folder = f"is a folder; name the photos in it, e.g. {path}/*.jpg"
            problem = folder if path.is_dir() else "is no file; check the path"
    except OSError as error:
        raise ArgumentError(f"Expected a photo, but {path} cannot be read: {error.strerror or error}.") from error
    if problem:
        raise ArgumentError(f"Expected a photo, but {path} {problem}.")
