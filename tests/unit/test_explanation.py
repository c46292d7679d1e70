"""The result object: maps, normalisation, words, saving."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from mhex.concept import Concept
from mhex.errors import ArgumentError
from mhex.explanation import Explanation
from mhex.viz import overlay


def image(scores, signed=False, size=(8, 8), **fields):
    batch = scores.shape[0]
    return Explanation(
        scores=scores,
        target=torch.zeros(scores.shape[: scores.dim() - 2], dtype=torch.long),
        logits=torch.zeros(batch, 2),
        probabilities=torch.full((batch, 2), 0.5),
        method="gae",
        signed=signed,
        size=size,
        **fields,
    )


def text(scores, tokens, words, signed=False, real=None):
    return Explanation(
        scores=scores,
        target=torch.zeros(scores.shape[0], dtype=torch.long),
        logits=torch.zeros(scores.shape[0], 2),
        probabilities=torch.full((scores.shape[0], 2), 0.5),
        method="gae",
        signed=signed,
        modality="text",
        tokens=tokens,
        words=words,
        real=torch.ones(scores.shape, dtype=torch.bool) if real is None else real,
    )


def test_map_is_bilinear_at_input_size():
    scores = torch.tensor([[[0.0, 1.0], [2.0, 3.0]]])
    upsampled = image(scores).map()
    assert upsampled.shape == (1, 8, 8)
    assert upsampled[0, 0, 0] == 0
    assert upsampled[0, -1, -1] == 3
    torch.testing.assert_close(upsampled.mean(), torch.tensor(1.5))
    # Pixel centres, not corners, are aligned: pixel (0, 2) lies at 2.5 / 8 of the width, an eighth past the first cell.
    torch.testing.assert_close(upsampled[0, 0, 2], torch.tensor(0.125))
    assert image(scores).map((2, 2)).equal(scores)
    assert image(scores[:, None].expand(1, 3, 2, 2)).map().shape == (1, 3, 8, 8)


def test_normalized_unsigned_spans_zero_to_one_per_sample():
    scores = torch.tensor([[[1.0, 2.0], [3.0, 5.0]], [[7.0, 7.0], [7.0, 7.0]]])
    normal = image(scores, size=(2, 2)).normalized()
    torch.testing.assert_close(normal[0], torch.tensor([[0.0, 0.25], [0.5, 1.0]]))
    assert normal[1].eq(0).all(), "a constant map becomes zero, not NaN"


def test_normalized_signed_keeps_zero():
    scores = torch.tensor([[[-4.0, 0.0], [1.0, 2.0]]])
    normal = image(scores, signed=True, size=(2, 2)).normalized()
    torch.testing.assert_close(normal[0], torch.tensor([[-1.0, 0.0], [0.25, 0.5]]))


def test_normalized_text_does_not_depend_on_padding():
    short = text(torch.tensor([[0.0, 2.0, 4.0, 0.0]]), None, None).normalized()
    long = text(torch.tensor([[0.0, 2.0, 4.0, 0.0, 0.0, 0.0]]), None, None).normalized()
    assert short.tolist() == [[0.0, 0.5, 1.0, 0.0]]
    assert long[:, :4].equal(short)
    # Without special tokens and padding too: 0 is the floor, and the weakest word is not nothing.
    assert text(torch.tensor([[1.0, 2.0, 4.0]]), None, None).normalized().tolist() == [[0.25, 0.5, 1.0]]


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("auto", [[-1.0, 0.0], [0.25, 0.5]]),
        ("minmax", [[0.0, 4 / 6], [5 / 6, 1.0]]),
        ("relu_max", [[0.0, 0.0], [0.5, 1.0]]),
        ("none", [[-4.0, 0.0], [1.0, 2.0]]),
    ],
)
def test_normalisations_of_a_signed_map(how, wanted):
    scores = torch.tensor([[-4.0, 0.0], [1.0, 2.0]]).expand(2, 3, 2, 2)
    normal = image(scores, signed=True, size=(2, 2)).normalized(how)
    torch.testing.assert_close(normal, torch.tensor(wanted).expand(2, 3, 2, 2))


def test_percentiles_clip_outliers():
    scores = torch.arange(400.0).reshape(1, 20, 20)
    scores[0, 0, 0], scores[0, -1, -1] = -1e6, 1e6
    normal = image(scores, signed=True, size=(20, 20)).normalized("percentile").flatten()
    low, high = 0.01 * 399, 0.99 * 399
    assert normal[:4].tolist() == [0.0] * 4
    assert normal[-4:].tolist() == [1.0] * 4
    torch.testing.assert_close(normal[200], torch.tensor((200 - low) / (high - low)))


@pytest.mark.parametrize("how", ["auto", "minmax", "percentile", "relu_max"])
def test_constant_and_negative_maps_never_give_nan(how):
    scores = torch.stack([torch.zeros(3, 3), torch.full((3, 3), -2.0)])
    normal = image(scores, signed=True, size=(3, 3)).normalized(how)
    assert normal[0].eq(0).all()
    assert normal[1].eq(-1 if how == "auto" else 0).all()


@pytest.mark.parametrize("how", ["minmax", "percentile", "relu_max"])
def test_special_tokens_and_padding_stay_out_of_the_scale(how):
    e = text(torch.tensor([[0.0, -1.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]), None, None, signed=True)
    e.scored = torch.tensor([[False, True, True, False, False], [False] * 5])
    normal = e.normalized(how)
    assert normal[0].tolist() == [0, 0, 1, 0, 0]
    assert normal[1].eq(0).all(), "a text without words"


def test_an_unknown_normalisation_is_refused():
    with pytest.raises(ArgumentError, match="Did you mean 'minmax'"):
        image(torch.rand(1, 2, 2)).normalized("min-max")


def test_words_join_pieces_and_skip_padding():
    scores = torch.tensor([[0.0, 1.0, -3.0, 2.0, 0.0]])
    tokens = [["[CLS]", "grip", "##ping", "film", "[SEP]"]]
    words = [[None, 0, 0, 1, None]]
    assert text(scores, tokens, words, signed=True).word_scores() == [("gripping", 1.0), ("film", 2.0)]
    assert text(scores, tokens, words, signed=True).word_scores(pooling="sum") == [("gripping", -2.0), ("film", 2.0)]
    assert text(scores, tokens, words, signed=False).word_scores() == [("gripping", 1.0), ("film", 2.0)]
    padded = torch.cat([torch.zeros(1, 2), scores], 1)
    left = torch.tensor([[False, False, True, True, True, True, True]])
    assert text(padded, tokens, words, signed=True, real=left).word_scores() == [("gripping", 1.0), ("film", 2.0)]


def test_words_of_a_pair_of_texts_stay_apart():
    tokens = [["<s>", "caf", "Ã©", "</s>", "</s>", "Ġbad", "</s>"]]
    words = [[None, 0, 0, None, None, 0, None]]
    scores = torch.tensor([[0.0, 1.0, 2.0, 0.0, 0.0, 5.0, 0.0]])
    assert text(scores, tokens, words, signed=True).word_scores() == [("café", 2.0), ("bad", 5.0)]


def test_words_need_a_tokenizer():
    with pytest.raises(ArgumentError, match="tokenizer="):
        text(torch.zeros(1, 3), None, None).word_scores()


def test_saved_data_comes_back(tmp_path):
    fields = {"class_names": ["cat", "dog"], "options": {"start_block": 2}, "cost": {"seconds": 1.5}}
    before = image(torch.rand(2, 3, 4, 4), **fields)
    after = Explanation.load(before.save(tmp_path / "e.safetensors"))
    assert after.scores.equal(before.scores)
    assert after.target.equal(before.target)
    assert after.probabilities.equal(before.probabilities)
    for name in ("method", "options", "class_names", "size", "signed", "cost", "modality"):
        assert getattr(after, name) == getattr(before, name)
    assert after.map().equal(before.map())


@pytest.mark.parametrize("kind", ["photos", "tensor", "grey"])
def test_a_loaded_explanation_draws_as_the_saved_one_did(tmp_path, kind):
    noise = np.random.default_rng(0)
    sizes = ((700, 900, 3), (40, 30, 3)) if kind == "photos" else ()
    pictures = {
        "photos": [Image.fromarray(noise.integers(0, 256, size, np.uint8)) for size in sizes],
        "tensor": torch.randn(2, 3, 48, 64),
        "grey": torch.randn(2, 1, 30, 30),
    }[kind]
    before = image(torch.rand(2, 3, 4, 4), pictures=pictures)
    after = Explanation.load(before.save(tmp_path / "e.safetensors"))
    for sample in range(2):
        assert np.array_equal(overlay(before, sample), overlay(after, sample))
    assert np.array_equal(overlay(before), overlay(Explanation.load(after.save(tmp_path / "e.safetensors"))))
    assert max(picture.size for picture in after.pictures) <= (640, 640)


def test_files_without_pictures_and_lengths_are_read(tmp_path):
    path = image(torch.rand(1, 2, 2)).save(tmp_path / "e.safetensors")
    with safe_open(path, "pt") as file:
        tensors, metadata = {n: file.get_tensor(n) for n in file.keys()}, file.metadata()  # noqa: SIM118
    del metadata["lengths"]
    save_file(tensors, path, metadata)
    e = Explanation.load(path)
    assert (e.pictures, e.lengths) == (None, None)


@pytest.mark.parametrize(
    ("tensors", "metadata", "words"),
    [
        ({"pictures.0": torch.zeros(4, 4, 3)}, {}, "uint8"),
        ({"pictures.0": torch.zeros(4, 4, dtype=torch.uint8)}, {}, r"\(4, 4\) for sample 0"),
        ({"pictures.0": torch.zeros(1, 9999, 3, dtype=torch.uint8)}, {}, "at most 640 pixels"),
        ({"pictures.7": torch.zeros(4, 4, 3, dtype=torch.uint8)}, {}, "none for sample 0"),
        ({"pictures./etc/passwd": torch.zeros(4, 4, 3, dtype=torch.uint8)}, {}, "none for sample 0"),
        ({"pictures": torch.zeros(1)}, {}, "tensors of an explanation"),
        ({"target": torch.zeros(1)}, {}, r"'target': '\(1,\) torch.float32'"),
        ({"real": torch.zeros(1, 4)}, {}, r"'real': '\(1, 4\) torch.float32'"),
        ({"logits": torch.zeros(1, 4).to(torch.float8_e5m2)}, {}, "tensors of an explanation"),
        ({"target": torch.tensor([9]), "probabilities": torch.ones(1, 9)}, {}, "tensors of an explanation"),
        ({"probabilities": torch.ones(1, 2, 2)}, {}, "tensors of an explanation"),
        ({"real": torch.ones(1, 3).bool()}, {}, "tensors of an explanation"),
        ({}, {"tokens": '[["a"]]'}, "tokens of each text"),
        ({}, {"lengths": "[1, 2]"}, "lengths of each text"),
        ({}, {"__class__": "1"}, "newer"),
        ({}, {"seed": "{"}, "damaged"),
    ],
)
def test_strange_files_are_refused(tmp_path, tensors, metadata, words):
    path = image(torch.rand(1, 2, 2)).save(tmp_path / "e.safetensors")
    with safe_open(path, "pt") as file:
        known, header = {n: file.get_tensor(n) for n in file.keys()}, file.metadata()  # noqa: SIM118
    save_file({**known, **tensors}, path, {**header, **metadata})
    with pytest.raises(ArgumentError, match=words):
        Explanation.load(path)


def test_saving_by_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"\.png.*but got 'e\.gif'"):
        image(torch.rand(1, 2, 2)).save(tmp_path / "e.gif")


@pytest.mark.parametrize("suffix", ["png", "html", "safetensors"])
def test_a_missing_folder_gets_a_sentence(tmp_path, suffix):
    with pytest.raises(ArgumentError, match="there is no folder"):
        image(torch.rand(1, 2, 2)).save(tmp_path / "missing" / f"e.{suffix}")


def test_loading_something_else_is_refused(tmp_path):
    (tmp_path / "e.safetensors").write_bytes(b"\x80\x04not a safetensors file")
    with pytest.raises(ArgumentError, match="safetensors"):
        Explanation.load(tmp_path / "e.safetensors")


def test_names_and_probabilities_of_targets():
    e = image(torch.rand(1, 2, 2), class_names=["cat"])
    assert e.target_names(0) == ["cat"]
    assert e.target_probabilities(0) == [0.5]
    e.target = None
    assert e.target_names(0) == ["custom target"]
    assert e.target_probabilities(0) == [None]


def test_the_file_of_a_concept_is_no_explanation(tmp_path):
    Concept(torch.ones(4)).save(tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=r"written by Explanation\.save"):
        Explanation.load(tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=r"ending in \.safetensors"):
        Concept(torch.ones(4)).save(tmp_path / "c.pt")


def test_a_class_below_0_has_no_name_of_another() -> None:
    explanation = Explanation(
        scores=torch.zeros(1, 2, 2), target=torch.tensor([-1]), logits=torch.zeros(1, 2), probabilities=None,
        method="gae", class_names=["cat", "dog"],
    )  # fmt: skip
    assert explanation.target_names(0) == ["class -1"]
