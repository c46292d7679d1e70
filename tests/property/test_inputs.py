"""Whatever is given as inputs, the answer is right or a sentence: never an error of torch, PIL or a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import reject
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

import mhex
from mhex.errors import MhexError
from mhex.inputs.preprocess import Preprocess
from support.argument_values import DTYPES, search
from support.models import CLASSES, FAMILIES
from support.tiny_bert import PIECES, SPECIAL, WORDS, bert, tokenizer

HEIGHT, WIDTH = FAMILIES["plain_cnn"].size
MODELS = {
    "cnn": FAMILIES["plain_cnn"].model(),
    "cnn32": FAMILIES["plain_cnn"].model(torch.float32),
    "vit": FAMILIES["timm_vit"].model(),
}
ODD = [None, True, -1, 0, 1.5, 10**30, "", "word", b"ab", [], [None], (), {}, {"a": 1}, {1}, object, float("nan")]
SQUASH = Preprocess(HEIGHT, WIDTH, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch says which kinds of tensors are young
COUNTS = pytest.mark.parametrize("factor", [1, pytest.param(10, marks=pytest.mark.slow)], ids=["few", "many"])


def answer(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a call returns; None if it is refused, which takes a sentence that says what is wrong."""
    try:
        return function(*arguments, **options)
    except MhexError as error:
        message = str(error)
        assert re.match(r"[A-Z].*[.?]$", message, re.DOTALL), message
        assert re.search(
            r"expected|choose|unknown|without|not finite|means nothing|itself fails|cannot be read|does not say",
            message,
            re.IGNORECASE,
        ), message
        return None


def check_explained(model: nn.Module, inputs: Any, shape: tuple[int, ...] | None = None, **options: Any) -> None:
    explanation = answer(mhex.explain, model, inputs, "input-x-gradient", **options)
    if explanation is not None:
        assert bool(torch.isfinite(explanation.scores).all())
        assert shape is None or explanation.scores.shape == shape


# --- tensors ---------------------------------------------------------------------------------------------------------


class Photographs(Tensor):
    """A class of somebody's own."""


def _stretched(x: Tensor) -> Tensor:
    return torch.zeros((1,) * 4, dtype=x.dtype).expand(10**9, 3, HEIGHT, WIDTH)


def _inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "as it is": lambda x: x,
    "parameter": lambda x: nn.Parameter(x),
    "of a graph": lambda x: x.clone().requires_grad_() * 1,
    "inference": _inference,
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "rows": lambda x: x.to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "jagged": lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
    "quantised": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8),
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "negative view": lambda x: torch._neg_view(x.float()),
    "conjugate": lambda x: torch.complex(x, x).conj().imag,
    "subclass": lambda x: x.as_subclass(Photographs),
    "stretched": _stretched,
    "array": lambda x: x.numpy(),
    "list": list,
    "dictionary": lambda x: {"pixel_values": x},
}
SIDES = st.sampled_from([0, 1, 2, 3, 8, 16])
SHAPES = st.one_of(
    st.sampled_from([(2, 3, HEIGHT, WIDTH)] * 2 + [(1, 3, 1, 1), (1, 3, HEIGHT, 0), (2, 1, HEIGHT, WIDTH)]),
    st.lists(SIDES, max_size=5).map(tuple),
)
VALUES = st.sampled_from([0.0, 1.0, -2.5, 1e-45, 3e38, 1e300, float("nan"), float("inf")])


@st.composite
def tensors(draw: Any, forms: Mapping[str, Callable[[Tensor], Any]] = FORMS) -> Any:
    shape, form = draw(SHAPES), draw(st.sampled_from(list(forms)))
    dtype = draw(st.one_of(st.sampled_from([torch.float32, torch.float64]), st.sampled_from(DTYPES)))
    value = draw(VALUES)
    try:
        x = torch.zeros(shape, dtype=dtype)
        return forms[form](torch.full_like(x, value) if value else x)
    except (RuntimeError, TypeError, ValueError, IndexError):  # torch has no such tensor
        reject()


@COUNTS
@pytest.mark.parametrize("name", MODELS)
def test_any_tensor_as_input_is_explained_or_refused(name: str, factor: int) -> None:
    def body(x: Any) -> None:
        shape = (x.shape[0], *x.shape[2:]) if isinstance(x, Tensor) and not x.is_nested and x.dim() == 4 else None
        check_explained(MODELS[name], x, shape)

    search(body, tensors(), 50 * factor)


@COUNTS
def test_dictionaries_of_images(factor: int) -> None:
    images = torch.rand(2, 3, HEIGHT, WIDTH)
    keys = st.sampled_from(
        ["x", "labels", "foo", "bool_masked_pos", "interpolate_pos_encoding", "return_dict", 3, None]
    )
    extras = st.dictionaries(keys, st.one_of(st.sampled_from(ODD), tensors()), max_size=2)
    model = FAMILIES["hf_vit"].model(torch.float32)

    def body(extra: dict[Any, Any]) -> None:
        check_explained(model, {"pixel_values": images, **extra}, (2, HEIGHT, WIDTH))
        check_explained(MODELS["cnn32"], {"pixel_values": images, **extra}, (2, HEIGHT, WIDTH))

    search(body, extras, 20 * factor)


@COUNTS
def test_any_object_as_input_is_explained_or_refused(factor: int) -> None:
    things = st.one_of(
        st.sampled_from(ODD), st.lists(st.sampled_from(ODD), max_size=3), st.lists(tensors(), max_size=2)
    )

    def body(thing: Any) -> None:
        for model in (MODELS["cnn"], bert()):
            check_explained(model, thing)
            check_explained(model, thing, tokenizer=tokenizer(), preprocess=SQUASH)

    search(body, things, 20 * factor)


# --- photos ----------------------------------------------------------------------------------------------------------

MODES = ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBX", "RGBa", "La"]


@st.composite
def photos(draw: Any) -> Image.Image:
    mode = draw(st.sampled_from([*MODES, "I;16", "I;16L", "I;16B"]))
    side = st.sampled_from([0, 1, 2, 7, 501])
    photo = Image.new(mode, (draw(side), draw(side)))
    if mode == "F":
        photo.paste(draw(VALUES), (0, 0, *photo.size))
    if draw(st.integers(0, 9)) == 0:
        photo.close()
    return photo


@COUNTS
def test_any_photo_is_explained_or_refused(factor: int) -> None:
    def body(batch: list[Any]) -> None:
        shape = (len(batch), HEIGHT, WIDTH)
        check_explained(MODELS["cnn32"], batch, shape, preprocess=SQUASH)
        if batch and all(isinstance(photo, Image.Image) and 0 in photo.size for photo in batch):
            assert answer(mhex.explain, MODELS["cnn32"], batch, "input-x-gradient", preprocess=SQUASH) is None

    search(body, st.lists(st.one_of(photos(), photos(), photos(), st.sampled_from(ODD)), max_size=3), 40 * factor)


@pytest.mark.parametrize("returned", [None, 3, "word", torch.zeros(3), torch.zeros(3, 0, 0), np.zeros((3, 8, 8))])
def test_preprocessing_that_returns_something_else(returned: Any) -> None:
    photo = Image.new("RGB", (4, 4))
    assert answer(mhex.explain, MODELS["cnn"], photo, "input-x-gradient", preprocess=lambda photo: returned) is None


# --- texts -----------------------------------------------------------------------------------------------------------

SIGNS = st.characters(exclude_categories=())  # with halves of surrogate pairs
TEXTS = st.one_of(
    st.text(SIGNS, max_size=12),
    st.sampled_from(["", " \n", "\x00\x01", "zzz qqq", "good " * 3000, "g" * 20000, "\u200b", "\ud800 good", *SPECIAL]),
    st.lists(st.sampled_from([*PIECES[:5], *SPECIAL]), min_size=1, max_size=6).map(" ".join),
)


@COUNTS
@pytest.mark.filterwarnings("ignore:Texts of up to")
def test_any_text_as_input_is_explained_or_refused(factor: int) -> None:
    def body(batch: Any) -> None:
        explanation = answer(mhex.explain, bert(), batch, "input-x-gradient", tokenizer=tokenizer())
        if explanation is not None:
            assert len(explanation.scores) == (1 if isinstance(batch, str) else len(batch))
            assert bool(torch.isfinite(explanation.scores).all())

    lists = st.lists(st.one_of(TEXTS, TEXTS, TEXTS, st.sampled_from(ODD)), max_size=3)
    search(body, st.one_of(TEXTS, lists, lists.map(tuple)), 60 * factor)


IDS = torch.tensor([[2, 16, 17, 3], [2, 18, 3, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
TOKENS = [
    *(torch.full((2, 4), value) for value in (-1, 0, 1, 9, len(WORDS), 10**9)),
    *(IDS.to(dtype) for dtype in (torch.uint8, torch.int16, torch.int32, torch.uint64, torch.bool, torch.complex64)),
    *(IDS[:, :2], IDS[:1], IDS[0], IDS[None], IDS[:0], IDS[:, :0], IDS.to_sparse(), IDS.to("meta"), IDS.tolist()),
    *(torch.zeros(2, 4, 16), torch.zeros(2, 4, 5), torch.full((2, 4, 16), float("nan")), torch.zeros(1).expand(2, 4)),
    *(torch.nested.nested_tensor([IDS[0], IDS[1, :3]]), IDS[:1].expand(10**12, 4), IDS[:, :1].expand(2, 10**12)),
    *(torch.zeros(2, 400, dtype=torch.long), IDS.numpy(), MASK),
]
NAMES = ["input_ids", "attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "inputs_embeds"]
OTHERS = ["labels", "output_attentions", "return_dict", "past_key_values", "encoder_hidden_states", "foo", 3, None]


@COUNTS
def test_any_token_ids_are_explained_or_refused(factor: int) -> None:
    def body(changes: dict[Any, Any]) -> None:
        problem = bert().config.problem_type
        check_explained(bert(), {"input_ids": IDS, "attention_mask": MASK, **changes})
        check_explained(bert(), changes, tokenizer=tokenizer())
        assert bert().config.problem_type == problem

    keys = st.sampled_from([*NAMES, *NAMES, *OTHERS])
    search(body, st.dictionaries(keys, st.one_of(*map(st.sampled_from, (TOKENS, ODD))), max_size=2), 60 * factor)


@pytest.mark.parametrize("value", TOKENS, ids=range(len(TOKENS)))
def test_bare_token_ids(value: Any) -> None:
    check_explained(bert(), value)
    check_explained(MODELS["cnn"], value)


@pytest.mark.parametrize("returned", [None, 3, {}, {"input_ids": 3}, [IDS], {"input_ids": IDS}, {"input_ids": IDS[0]}])
def test_tokenizer_that_returns_something_else(returned: Any) -> None:
    assert answer(mhex.explain, bert(), "good", "gae", tokenizer=lambda *_, **__: returned) is None


# --- the other arguments ---------------------------------------------------------------------------------------------

CLASS_NAMES: list[Callable[[], Any]] = [
    lambda: ["a"] * CLASSES,
    lambda: ["a"],
    lambda: list(range(CLASSES)),
    lambda: [None] * CLASSES,
    lambda: ["\ud800", "", *"abcde"],
    lambda: "abcdefg",
    lambda: b"abcdefg",
    lambda: set("abcdefg"),
    lambda: iter("abcdefg"),
    lambda: dict(enumerate("abcdefg")),
    lambda: {str(place): name for place, name in enumerate("abcdefg")},
    lambda: {place + 1: name for place, name in enumerate("abcdefg")},
    lambda: {"a": 1, 2: "b", 2.5: 3, None: 4, 5: 5, 6: 6, 7: 7},
    lambda: dict(enumerate("abcdefg")).values(),
    lambda: np.array(list("abcdefg")),
    lambda: np.array("a"),
    lambda: torch.arange(CLASSES),
    lambda: [["a"]] * CLASSES,
]


@COUNTS
def test_names_seeds_and_tasks(factor: int) -> None:
    images = torch.rand(2, 3, HEIGHT, WIDTH)
    options = st.fixed_dictionaries(
        {},
        optional={
            "class_names": st.one_of(
                st.sampled_from(CLASS_NAMES), st.sampled_from([lambda odd=odd: odd for odd in ODD])
            ),
            "target": st.sampled_from(["a", "g", 0, "top2"]),
            "seed": st.one_of(st.integers(), st.sampled_from([*ODD, np.int64(3)])),
            "task": st.sampled_from(["classification", "multi-label", *ODD]),
            "progress": st.sampled_from([False, None, 0, "", []]),
        },
    )

    def body(chosen: dict[str, Any]) -> None:
        if "class_names" in chosen:
            chosen = {**chosen, "class_names": chosen["class_names"]()}
        check_explained(MODELS["cnn"], images, **chosen)

    search(body, options, 60 * factor)


def test_names_by_number_in_text() -> None:
    """JSON has texts as keys, whose order is not that of the numbers."""
    images = torch.rand(1, 3, HEIGHT, WIDTH)
    model = nn.Sequential(nn.Conv2d(3, 12, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    names = {str(place): f"class {place}" for place in range(12)}
    assert mhex.explain(model, images, "input-x-gradient", class_names=names).class_names == list(names.values())


# --- data sets -------------------------------------------------------------------------------------------------------


class Collection:
    """A data set as torch knows them."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place]


def _columns(items: list[Any]) -> Any:
    return torch.stack([item[0] for item in items]), *([item[place] for item in items] for place in (1, 2))


def _named(items: list[Any]) -> Any:
    return {"inputs": [item[0] for item in items], "label": [item[1] for item in items]}


CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": lambda items: items,
    "tuple": tuple,
    "generator": lambda items: (item for item in items),
    "data set": Collection,
    "loader": lambda items: DataLoader(Collection(items), batch_size=2, collate_fn=list),
    "items alone": lambda items: [item[0] for item in items],
    "columns": _columns,
    "dictionary": _named,
    "dictionaries": lambda items: [dict(zip(("image", "label", "mask"), item, strict=True)) for item in items],
}
IMAGE = torch.rand(3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
PLAIN_FORMS = {name: form for name, form in FORMS.items() if name not in ("stretched", "list")}
LABELS = [
    0,
    6,
    torch.tensor(3),
    torch.tensor([3]),
    "a",
    np.int64(2),
    7,
    -1,
    10**30,
    float("nan"),
    torch.zeros(7),
    [0, 1],
]
MASKS = [torch.ones(4, 4), torch.zeros(HEIGHT, WIDTH), np.eye(4), [[1, 2], [3]], torch.ones(4, 4).to_sparse(), "word"]
MASKS += [
    torch.ones(4, 4, device="meta"),
    Image.new("L", (3, 3), 255),
    Image.new("RGB", (3, 3)),
    torch.full((2, 2), 0.5),
]


@COUNTS
@pytest.mark.filterwarnings("ignore::mhex.errors.MhexWarning")
def test_data_sets_of_any_items_are_judged_or_refused(factor: int) -> None:
    images = st.one_of(st.just(IMAGE), st.just(IMAGE), tensors(PLAIN_FORMS), photos(), st.sampled_from(ODD))
    labels = st.one_of(st.just(1), *map(st.sampled_from, (LABELS, ODD)))
    masks = st.one_of(st.none(), *map(st.sampled_from, (MASKS, ODD)))
    sets = st.tuples(st.sampled_from(list(CONTAINERS)), st.lists(st.tuples(images, labels, masks), max_size=3))

    def body(example: tuple[str, list[Any]]) -> None:
        name, items = example
        try:
            data = CONTAINERS[name](items)
        except (RuntimeError, TypeError):  # such images cannot be one tensor
            reject()
        check_judged(MODELS["cnn"], data, len(items), preprocess=SQUASH)

    search(body, sets, 40 * factor)


@COUNTS
@pytest.mark.filterwarnings("ignore::mhex.errors.MhexWarning")
def test_data_sets_of_texts(factor: int) -> None:
    def rows(batch: list[Any]) -> Iterator[Any]:
        yield from batch

    containers = [lambda batch: batch, rows, lambda batch: {"text": batch}, lambda batch: [(text, 0) for text in batch]]
    sets = st.tuples(st.sampled_from(containers), st.lists(st.one_of(TEXTS, TEXTS, st.sampled_from(ODD)), max_size=3))

    def body(example: tuple[Callable[[Any], Any], list[Any]]) -> None:
        check_judged(bert(), example[0](example[1]), len(example[1]), tokenizer=tokenizer())

    search(body, sets, 15 * factor)


def check_judged(model: nn.Module, data: Any, most: int, **options: Any) -> None:
    chosen = {"methods": ["input-x-gradient"], "metrics": [("deletion", {"steps": 2})], "controls": False}
    report = answer(mhex.evaluate, model, data, **chosen, **options)
    if report is not None:
        assert 1 <= report.rows.num_rows <= max(most, HEIGHT)


WRONG_SIZES = [(name, size) for name in ("batch_size", "inner_batch", "limit") for size in (0, -1, True, 1.5, "word")]


@pytest.mark.parametrize(("name", "size"), [*WRONG_SIZES, ("batch_size", None)])
def test_sizes_of_batches(name: str, size: Any) -> None:
    images = torch.rand(2, 3, HEIGHT, WIDTH)
    options = {"methods": ["input-x-gradient"], "metrics": ["deletion"], "controls": False, name: size}
    assert answer(mhex.evaluate, MODELS["cnn"], images, **options) is None


@pytest.mark.parametrize("dtype", [torch.int1, torch.bits16, torch.complex64])
def test_images_of_odd_numbers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="images of real numbers"):
        mhex.explain(MODELS["cnn"], torch.empty(1, 3, HEIGHT, WIDTH, dtype=dtype), "input-x-gradient")


def test_closed_photos_are_lost_samples() -> None:
    photos = [Image.new("RGB", (4, 4)) for _ in range(2)]
    photos[0].close()
    options = {"methods": ["input-x-gradient"], "metrics": ["compactness"], "controls": False, "preprocess": SQUASH}
    with pytest.warns(mhex.errors.MhexWarning, match="cannot be read"):
        report = mhex.evaluate(MODELS["cnn"], photos, **options)
    assert list(report.lost) == [0]
