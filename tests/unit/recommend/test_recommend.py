"""A recommendation: the best where it is known in closed form, controls, scores, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, MhexError
from mhex.inputs.samples import Pieces, shuffled
from mhex.recommend.call import _complete_images
from mhex.recommend.race import seconds_of, spoken
from support.method_races import GRADIENT, GRADIENT_NAME, METHODS, Clock, Linear, images, run


def test_pixel_times_gradient_wins_where_it_is_exact() -> None:
    found = run()
    assert (found.method, dict(found.options)) == ("input-x-gradient", {})
    assert found.table[0].images == 12
    assert found.sure > 0.99
    assert found.indistinguishable == ()
    assert found.margin is not None
    assert found.margin[1] > 0
    text = str(found)
    assert text.startswith("Use input-x-gradient: the best of 3 methods on 12 samples of your data.")
    assert "All others are worse." in text


def test_a_quicker_method_is_named_where_it_takes_less_than_half_the_time() -> None:
    found = run()
    best, rival, *others = found.table
    for seconds, named in ((0.6, False), (0.4, True)):
        equal = replace(rival, worse="no", seconds=seconds)
        table = (replace(best, seconds=1.0), equal, *others)
        sentences = replace(found, seconds=1.0, indistinguishable=(equal.method,), table=table).sentences()
        words = f"The quickest of these is {equal.method}, with {spoken(seconds)}."
        assert (words in sentences) is named
        assert any(line.startswith("The quickest") for line in sentences) is named


def test_faithfulness_is_the_closed_form() -> None:
    """Sorted contributions: no order of pixels has more between the two curves."""
    found = run(images=8)
    model, x = Linear(), torch.as_tensor(images())
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))[:8]
    x = x[order]
    top = model(x).argmax(1)
    shares = (x.flatten(1) * model.weight[top].detach()).sort(1, descending=True).values
    curves = [
        torch.stack([one.sum(1) - one[:, : 16 * step].sum(1) for step in range(5)], 1)
        for one in (shares, shares.flip(1))
    ]
    exact = (torch.trapezoid(curves[1], dx=0.25) - torch.trapezoid(curves[0], dx=0.25)).mean()
    assert found.table[0].parts["faithfulness"] == pytest.approx(float(exact), rel=1e-9)
    others = [line.parts["faithfulness"] for line in found.table[1:]]
    assert max(others) < found.table[0].parts["faithfulness"]


def test_controls_take_part_and_are_never_recommended() -> None:
    """The model looks at the middle alone, so that the centred map is the best of all, and still no answer."""
    model = Linear()
    u = torch.arange(8, dtype=torch.float64) - 3.5
    hill = torch.exp(-(u[:, None].square() + u.square()) / 8).flatten()
    model.weight.data = torch.stack([hill, -hill / 3, -hill / 3, -hill / 3])
    found = run(model, methods=[("rise", {"n": 2}), ("rise", {"n": 3})], data=images().abs() + 0.5)
    lines = {line.method: line for line in found.table}
    assert lines["control:gaussian"].behind < 0
    assert found.method == "rise"
    assert found.sentences()[0].startswith("Use rise") or "is first" in found.sentences()[0]
    assert all(line.worse is None for name, line in lines.items() if name.startswith("control:"))
    assert not any(name.startswith("control:") for name in (*found.indistinguishable, *found.not_better_than_random))
    with pytest.raises(ArgumentError, match="never recommended"):
        run(methods=["control:random"])
    assert run(methods=["control:sobel", "input-x-gradient"], images=3).method == "input-x-gradient"


def test_the_zero_of_all_parts_is_chance() -> None:
    random = next(
        line for line in run(methods=["input-x-gradient"], data=images(40)).table if line.method == "control:random"
    )
    assert random.parts["class_sensitivity"] == 0
    assert abs(random.parts["stability"]) < 0.06
    assert abs(random.parts["faithfulness"]) < 1


def test_methods_as_bad_as_random_are_flagged() -> None:
    """A gradient says nothing of pixels that may have either sign; pixel times gradient says it all."""
    found = run(methods=[GRADIENT, "input-x-gradient"], data=images(16))
    assert found.not_better_than_random == (GRADIENT_NAME,)
    words = "Hardly or not better than random maps, with less than 20% of the lead of input-x-gradient"
    assert f"{words}: {GRADIENT_NAME}." in found.sentences()
    alone = run(methods=[GRADIENT], data=images(16))
    assert alone.sentences()[0].startswith("No method is shown to beat random maps")
    assert (alone.margin, alone.sure) == (None, 1.0)


def test_the_same_seed_gives_the_same_answer_and_another_other_images() -> None:
    def plain(found: mhex.Recommendation) -> list[Any]:
        return [(line.method, line.behind, line.images, dict(line.parts)) for line in found.table]

    assert plain(run(images=6)) == plain(run(images=6))
    assert plain(run(images=6)) != plain(run(images=6, seed=1))


def test_a_metric_is_a_score_also_where_lower_is_better() -> None:
    found = run(score=("deletion", {"reference": "zero", "steps": 4}))
    assert found.method == "input-x-gradient"
    assert found.score.startswith("Score: deletion")
    assert "lower is better" in found.score
    assert list(found.table[0].parts) == ["value"]
    best, random = (next(one for one in found.table if one.method == name) for name in (found.method, "control:random"))
    assert best.parts["value"] < random.parts["value"]
    assert random.behind > 0


def test_weights_decide() -> None:
    """Of a linear model the gradient never changes: all else is less stable."""
    assert run(score={"stability": 1}, methods=METHODS[:2]).options == GRADIENT[1]
    assert run(score={"faithfulness": 1}).score.startswith("Score: 1 faithfulness")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget": "soon"}, "'2 min'"),
        ({"budget": 0}, "more than 0 seconds"),
        ({"score": "fidelty"}, "Did you mean 'fidelity'"),
        ({"score": {"faith": 1}}, "Unknown part of the score 'faith'"),
        ({"score": {"stability": -1}}, "a number from 0 on"),
        ({"score": {"stability": 0}}, "a weight above 0"),
        ({"score": 3}, "a metric or weights of"),
        ({"score": "pointing-game"}, "needs a mask"),
        ({"methods": ["gae"]}, "cannot explain"),
        ({"methods": [("rise", {"n": 10**9})]}, r"too short for rise \(n=1000000000\), which needs about"),
        ({"data": images(0)}, "at least one sample"),
        ({"images": 0}, "from 1 on"),
        ({"task": "regression"}, "metrics judge classes"),
    ],
)
def test_wrong_arguments_are_told(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MhexError, match=words):
        run(**changes)


def test_budgets_are_read() -> None:
    texts = {"90": 90, "2 min": 120, "2m": 120, "1.5 h": 5400, "30 seconds": 30, 7.5: 7.5}
    assert {text: seconds_of(text) for text in texts} == texts
    assert [spoken(one) for one in (0.0351, 1.24, 75, 150, 7200)] == ["35 ms", "1.2 s", "75 s", "2.5 min", "2.0 h"]
    for wrong in (True, None, "-3", "2 days"):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            seconds_of(wrong)  # type: ignore[arg-type]


def test_data_is_sampled_where_it_can_be() -> None:
    items = list(range(20))
    pairs = [(torch.full((1, 4, 4), float(n)), n) for n in items]
    ids = [samples.label.item() for samples in _singles(Pieces(shuffled(pairs, 3)[0]))]
    assert ids != items
    assert sorted(ids) == items
    loader = torch.utils.data.DataLoader(pairs, batch_size=5)  # type: ignore[arg-type]
    assert [samples.label.item() for samples in _singles(Pieces(shuffled(loader, 3)[0]))] == items
    both, order = shuffled({"inputs": torch.arange(20.0).view(20, 1, 1, 1), "label": torch.arange(20)}, 3)
    assert order == both["label"].tolist()
    assert both["inputs"].flatten().tolist() == both["label"].tolist() != items
    images, labels = shuffled((torch.arange(20.0).view(20, 1, 1, 1), np.arange(20)), 3)[0]
    assert images.flatten().tolist() == labels.tolist() != items


def _singles(pieces: Pieces) -> Any:
    place = 0
    while (piece := pieces.get(place)) is not None:
        assert len(piece.ids) == (1 if place == 0 else len(piece.ids)) <= 2
        for n in range(len(piece.ids)):
            yield piece.only(slice(n, n + 1))
        place += 1


def test_data_of_the_other_kind_are_told_in_a_sentence() -> None:
    from PIL import Image

    from mhex.bundle import Bundle

    photo = Image.new("RGB", (8, 8))
    reads_photos = Bundle("", Linear(), preprocess=lambda picture: torch.zeros(1, 8, 8))
    reads_texts = Bundle("", Linear(), tokenizer=lambda texts, **options: {})
    for call in (mhex.recommend, mhex.explain):
        with pytest.raises(ArgumentError, match="Expected photos, but got texts; this model reads photos"):
            call(reads_photos, [{"text": "a cat"}] if call is mhex.recommend else ["a cat"])
        with pytest.raises(ArgumentError, match="Expected texts, but got photos; this model reads texts"):
            call(reads_texts, [{"image": photo}] if call is mhex.recommend else [photo])


def test_means_are_over_the_images_that_have_all_numbers() -> None:
    parts = {"a": torch.tensor([1.0, 2.0, torch.nan, 6.0]), "b": torch.tensor([5.0, torch.nan, 7.0, 7.0])}
    whole = _complete_images(parts)
    assert whole["a"].isfinite().tolist() == whole["b"].isfinite().tolist() == [True, False, False, True]
    assert whole["a"].nanmean() == 3.5


def test_with_few_images_nothing_is_claimed() -> None:
    found = run(images=5)
    text = str(found)
    assert found.sentences()[0] == (
        "input-x-gradient is first on 5 samples, but that is too few to tell methods apart: it takes 6."
    )
    assert (found.sure, found.margin, found.indistinguishable) == (None, None, ())
    assert {line.standing for line in found.table} == {"too few samples", "control"}
    assert {line.above_random for line in found.table if not line.control} == {"undecided"}
    assert "±" not in text
    assert "worse" not in text
    assert "As good" not in text
    json.dumps(found.as_dict(), allow_nan=False)
    enough = run(images=6)
    assert enough.sure is not None
    assert enough.sentences()[0].startswith(("Use", "No method"))


def test_accuracy_is_told_where_there_are_labels() -> None:
    x = images(12)
    top = Linear()(x).argmax(1)
    right = run(data=(x, top), methods=["input-x-gradient"])
    assert right.accuracy == (12, 12, 4)
    assert right.sentences()[0] == "The model is right on 12 of 12 samples."
    wrong = run(data=(x, (top + 1) % 4), methods=["input-x-gradient"])
    assert wrong.accuracy == (0, 12, 4)
    assert wrong.sentences()[0].endswith("is not shown to be above chance (1 of 4): there may be nothing to explain.")
    assert run(methods=["input-x-gradient"]).accuracy is None


def test_a_centred_map_that_is_as_good_is_named() -> None:
    """The model looks at the middle alone, and so does the centred map."""
    model = Linear()
    u = torch.arange(8, dtype=torch.float64) - 3.5
    hill = torch.exp(-(u[:, None].square() + u.square()) / 8).flatten()
    model.weight.data = torch.stack([hill, -hill / 3, -hill / 3, -hill / 3])
    found = run(model, methods=[("occlusion", {"patch": 4, "stride": 4})], data=images().abs() + 0.5)
    assert found.not_better_than_control["control:gaussian"] == (found.table[0].method,)
    words = f"A centred blob is as good as {found.table[0].method} here"
    assert (found.table[0].above_random == "above") == any(words in sentence for sentence in found.sentences())


def test_it_says_when_all_samples_are_used() -> None:
    """A race that ends because one method is left does not say so."""
    answer = run(data=images(12))
    assert answer.exhausted
    assert answer.used < 0.5 * answer.budget
    assert any(sentence.startswith("All samples are used, after") for sentence in answer.sentences())
    clock = Clock()
    answer = run(Linear(clock, 0.02), budget=30, clock=clock, data=images(500), score="balanced")
    assert not answer.exhausted
    assert sum(line.worse == "no" for line in answer.table) == 1
    assert "All samples are used" not in str(answer)
