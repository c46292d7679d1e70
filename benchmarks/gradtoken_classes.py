"""Does GradToken follow its target? Two animals in a picture, two topics in a text, and what its heads say.

python benchmarks/gradtoken_classes.py        writes docs/results/gradtoken-classes.md

Numbers behind the pictures of the GradToken paper that show one input for several targets, and heads joined in two
ways. Needs the pets and AG News (`MHEX_DATA`); both models ship. Pictures of pets are drawn into `out/studies`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import mhex
from cdam_concepts import side_by_side
from mhex.lab.datasets import data_entry, load_ag_news, load_pets
from mhex.lab.datasets.sets import TextSet
from mhex.stats.correlation import rank_correlation
from mhex.viz import comparison
from study_charts import stacked
from study_page import interval_of, made_by, parser_of, save_picture, save_samples, table, write_page
from two_classes import ALIKE, INSIDE, SHARE, Numbers, ahead, animals_on, both_maps, both_table, flat_row, inside, view

MODEL, TEXT_MODEL = "zoo:pets-vit", "zoo:agnews-mhex-minilm"
OWN = "gradtoken"
VIEWS = {
    OWN: view("gradtoken"),
    "gradtoken, heads averaged": view("gradtoken", head_integration="average"),
    "gradtoken, no propagation": view("gradtoken", aggregation="none"),
    **{
        name: view(name)
        for name in (
            "gae",
            "transformer-attribution",
            "agcam",
            "attcat",
            "attention-gradcam",
            "gradcam",
            "partial-lrp",
            "abslrp",
            "cdam",
            "rollout",
            "attention",
        )
    },
}
TEXT_METHODS = (
    OWN,
    "gae",
    "transformer-attribution",
    "agcam",
    "attcat",
    "cdam",
    "attnlrp",
    "conservative-lrp",
    "mhex",
    "rollout",
)
DRAWN = (OWN, "gae", "transformer-attribution", "rollout")
DRAWN_TEXT = (OWN, "gae", "attnlrp")
# Made up, so that nobody's text is shown; the first half of each is about sports, the other about business.
TEXTS = (
    "The goalkeeper saved two penalties and the team won the cup. Shares of the bank fell after its quarterly profit.",
    "The striker scored three goals in the final match. The oil company raised its prices and investors sold stock.",
)
TOPICS = (1, 2)  # sports, business
SHOWN, BATCH = 3, 20


@dataclass(frozen=True)
class TextPairs:
    """Texts of two topics, one after the other.

    Attributes:
        texts: Joined by a space.
        topics: Of the first and the second part, (N, 2).
        ends: Number of the last token of the first part, counted from 1 after the start token, (N,).
    """

    texts: list[str]
    topics: Tensor
    ends: Tensor


def text_pairs(bundle: mhex.Bundle, data: TextSet, count: int, seed: int) -> TextPairs:
    """Pairs of texts of different topics that the model takes whole, drawn by the seed."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).tolist()
    labels = data.labels.tolist()
    texts: list[str] = []
    topics: list[tuple[int, int]] = []
    ends: list[int] = []
    for first, second in zip(order[::2], order[1::2], strict=False):
        lengths = [tokens_of(bundle, text) for text in (data.texts[first], data.texts[second])]
        joined = f"{data.texts[first]} {data.texts[second]}"
        if labels[first] != labels[second] and tokens_of(bundle, joined) == sum(lengths) and len(texts) < count:
            texts.append(joined)
            topics.append((labels[first], labels[second]))
            ends.append(lengths[0])
    return TextPairs(texts, torch.tensor(topics), torch.tensor(ends))


def tokens_of(bundle: mhex.Bundle, text: str) -> int:
    """Tokens of a text, without the two special ones."""
    if bundle.tokenizer is None:
        raise SystemExit(f"{bundle.name} has no tokenizer.")
    return int(torch.as_tensor(bundle.tokenizer(text)["input_ids"]).numel()) - 2


def share_on_part(scores: Tensor, end: int, second: bool) -> float:
    """Share of the positive part of scores (T,) on one part of a text; `end` is the last token of the first part."""
    positive = scores.double().clamp_min(0)
    first = positive[: end + 1].sum()  # the start token is before the first part
    total = positive.sum()
    return float(((total - first) if second else first) / total) if total > 0 else float("nan")


def text_shares(bundle: mhex.Bundle, pairs: TextPairs, seed: int) -> Numbers:
    """By method: mean share of the positive part on the part of the topic, and how alike both are, (N,) each."""
    found = {}
    for name in TEXT_METHODS:
        shares, alike = [], []
        for k, (text, topics, end) in enumerate(zip(pairs.texts, pairs.topics, pairs.ends.tolist(), strict=True)):
            scores = mhex.explain(bundle, [text], name, topics[None], seed=seed, progress=False).scores[0].cpu()
            both = scores.unbind(0) if scores.dim() == 2 else [scores] * 2  # one map for all classes
            shares.append(sum(share_on_part(scores, end, bool(k)) for k, scores in enumerate(both)) / 2)
            alike.append(rank_correlation(*(scores[None, 1 : tokens_of(bundle, text) + 1] for scores in both)))
            if k + 1 == len(pairs.texts):
                print(f"two topics: {name}", flush=True)
        found[name] = {SHARE: torch.tensor(shares, dtype=torch.float64), ALIKE: stacked(alike)}
    return found


def head_numbers(bundle: mhex.Bundle, items: Sequence[Any]) -> tuple[list[list[Any]], list[list[Any]], str]:
    """Rows by map: share on the animal. Rows by pair of heads: rank correlation. What both ways to join show."""
    shares: dict[str, list[Tensor]] = {}
    negative: dict[str, list[Tensor]] = {}
    alike: dict[str, list[Tensor]] = {}
    for start in range(0, len(items), BATCH):
        part = [items[k] for k in range(start, min(start + BATCH, len(items)))]
        photos, masks = [item["image"] for item in part], torch.stack([item["mask"] for item in part])
        signed = mhex.explain(bundle, photos, "gradtoken", head_integration="average", per_head=True)
        heads = {name: scores.float().cpu() for name, scores in signed.layers.items()}
        joined = torch.stack([*heads.values()])
        maps = {
            **heads,
            "ReLU, then mean": joined.clamp_min(0).mean(0),
            "mean of heads": joined.mean(0),
            "the same everywhere": torch.ones_like(joined[0]),
        }
        for name, scores in maps.items():
            shares.setdefault(name, []).append(inside(scores, masks == 1))
            negative.setdefault(name, []).append((scores < 0).double().flatten(1).mean(1))
        names = [*heads]
        for a, b in [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]:
            pair = rank_correlation(heads[a].flatten(1), heads[b].flatten(1))
            alike.setdefault(f"{a} and {b}", []).append(pair)
    found = {name: stacked(values) for name, values in shares.items()}
    rows = [[name, interval_of(values), interval_of(stacked(negative[name]))] for name, values in found.items()]
    both = found["mean of heads"].isfinite() & found["ReLU, then mean"].isfinite()
    gain = interval_of((found["mean of heads"] - found["ReLU, then mean"])[both])
    kind = "more" if gain.above else "less" if gain.below else "not shown to be more or less"
    words = (
        f"the mean of heads has {kind} of its positive part on the animal than the published ReLU, then mean: by "
        f"{gain} on {gain.count} photos; on {int((~both).sum())} it has no positive part at all."
    )
    return rows, [[name, interval_of(stacked(values))] for name, values in alike.items()], words


def follows(animals: Numbers, topics: Numbers, seed: int) -> str:
    """Whether the maps follow their target, in words."""
    both = [interval_of(found[OWN][SHARE], seed) for found in (animals, topics)]
    kind = "follows" if all(one.low > 0.5 for one in both) else "is not shown to follow"
    return (
        f"- `{OWN}` {kind} its target: the share is {both[0]} on pictures and {both[1]} on texts, where a map without "
        "a class has 0.5."
    )


def text_picture(bundle: mhex.Bundle, wanted: Any) -> str:
    """Made-up texts of two topics, coloured for each of them."""
    maps = [mhex.explain(bundle, list(TEXTS), name, list(TOPICS), seed=wanted.seed) for name in DRAWN_TEXT]
    sheet = comparison(maps, samples=range(len(TEXTS)), title="Which words speak for sports, and which for business?")
    path = wanted.out / "images" / "gradtoken-topics.png"
    return save_picture(sheet, path, "Words of two made-up texts, coloured for two topics by three methods")


def main() -> None:
    """Measure, draw and write."""
    wanted = parser_of(__doc__, 60, "pictures of two animals, texts of two topics, and photos").parse_args()
    started, seed = time.perf_counter(), wanted.seed
    vision, reader = mhex.load(MODEL), mhex.load(TEXT_MODEL)
    for bundle in (vision, reader):
        bundle.model.to(wanted.device)
    pets = load_pets("test", trimaps=True)
    pairs = side_by_side(pets, wanted.images, seed)
    if pets.trimaps is None:
        raise SystemExit("The pets have no masks.")
    places = animals_on(pets.trimaps, pairs.rows)
    animals = both_maps(vision, pairs, places, VIEWS, seed)
    texts = text_pairs(reader, load_ag_news("test"), wanted.images, seed)
    topics = text_shares(reader, texts, seed)
    items = data_entry("pets").items("test", limit=wanted.images)
    heads, alike, said = head_numbers(vision, items)
    sheets = [
        mhex.explain(vision, pairs.photos[:SHOWN], name, pairs.breeds[:SHOWN].to(wanted.device), seed=seed)
        for name in DRAWN
    ]
    pictures = save_samples(
        comparison(sheets, samples=range(SHOWN), title="One picture, two targets"),
        "gradtoken-two-animals.jpg",
        f"{SHOWN} pictures of two animals, explained for both by four methods",
    )
    some = [items[k * len(items) // 4]["image"] for k in range(4)]
    joined = mhex.explain(vision, some, "gradtoken", head_integration="average", per_head=True)
    drawn = [joined, mhex.explain(vision, some, "gradtoken")]
    head_picture = save_samples(
        comparison(drawn, samples=range(4), labels=["mean of heads", "ReLU, then mean"], title="Heads, joined twice"),
        "gradtoken-heads.jpg",
        "Maps of four photos with heads joined in two ways",
    )
    head, rows = both_table(animals, seed)
    rivals = [name for name in VIEWS if name != OWN]
    count = (
        f"{wanted.images} pictures of two animals, {len(texts.texts)} texts of two topics and {len(items)} test photos"
    )
    write_page(
        wanted.out,
        "gradtoken-classes",
        [
            "# One input, several targets: GradToken's pictures in numbers",
            f"`{MODEL}` and `{TEXT_MODEL}`. The paper's abstract says that maps follow the target that is chosen. "
            "Which picture has which number could not be found out: the notes that this project has describe figures 6 "
            "(words of reviews), 9 (schemes of propagation) and 11 (depth). Figure 10, between schemes and depth, is "
            "taken for the two ways to join heads, and 7 and 8 for what is explained for several targets.",
            made_by(wanted, count, time.perf_counter() - started),
            "## Two animals in a picture (figure 7)",
            "The middle halves of a cat's and a dog's photo (test split) side by side; maps of the breed of either. "
            "*Share*: of the positive part of a map, how much lies on the half that shows its breed, mean of both "
            "maps; 0.5 is what every map has that knows no class. *On its animal*: the same inside the outline of that "
            "animal. The rank correlation is that of the two maps of a picture.",
            pictures,
            table(head, [*rows, flat_row(places)]),
            "## Two topics in a text (figure 8)",
            "Two test items of AG News of different topics, one after the other; maps of the topic of either. *Share* "
            "as above, over tokens.",
            text_picture(reader, wanted),
            table(*both_table(topics, seed)),
            "## Heads (figure 10)",
            "Single photos, predicted class. *On the animal*: share of the positive part of a map inside the outline; "
            "*below 0*: share of its patches, which ReLU cuts off in each head before the mean.",
            head_picture,
            table(["map", "on the animal", "below 0"], heads),
            table(["heads", "rank correlation"], alike),
            "## Reading",
            f"{follows(animals, topics, seed)}\n"
            f"- By halves of pictures `{OWN}` is {ahead(animals, OWN, rivals, seed)}.\n"
            f"- By animals `{OWN}` is {ahead(animals, OWN, rivals, seed, INSIDE)}.\n"
            f"- By parts of texts `{OWN}` is {ahead(topics, OWN, TEXT_METHODS[1:], seed)}.\n"
            f"- Heads: {said}\n"
            "- Differences are of shares on the same inputs, with 95 % intervals, not corrected for their number.",
        ],
    )


if __name__ == "__main__":
    main()
