"""Which words speak for a topic? Pictures of tokens on AG News, as in the MHEX paper, and how far methods agree.

python benchmarks/token_pictures.py --device cuda        writes docs/results/token-pictures.md

Heads on a fine-tuned MiniLM beside methods that need none, for the predicted topic. Needs AG News (`MHEX_DATA`), the
model (`mhex models build agnews-mhex-minilm-tuned`) and the extra `shap`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

import mhex
from mhex.lab.datasets import TextSet, load_ag_news
from mhex.stats.correlation import rank_correlation
from mhex.viz import comparison
from study_page import Interval, interval_of, made_by, parser_of, save_picture, table, write_page

MODEL = "zoo:agnews-mhex-minilm-tuned"
METHODS = ("mhex", "shap", "gae", "gradtoken", "rollout", "input-x-gradient")
DRAWN = ("mhex", "shap", "gae", "rollout")
# Made up, so that nobody's text is shown; the last could stand under two headings.
TEXTS = (
    "The striker scored twice in the second half, and the visitors never came back into the match.",
    "Ministers of both countries met the oil companies on Tuesday, and prices fell before the talks had ended.",
    "The software company Lumenfold bought the football club Harrow Vale, and its engineers now count every pass.",
)
BATCH = 16
TOP = 3


def explained(bundle: mhex.Bundle, texts: Sequence[str], seed: int) -> dict[str, mhex.Explanation]:
    """Explanations of the predicted topics by all methods."""
    target = mhex.explain(bundle, list(texts), method="mhex").target
    return {
        name: mhex.explain(bundle, list(texts), method=name, target=target, seed=seed, progress=False)
        for name in METHODS
    }


def agreement(found: dict[str, mhex.Explanation]) -> dict[str, list[list[float]]]:
    """For each text, rank correlation with the heads' scores, and the share of their top words that are common."""
    own = found["mhex"]
    numbers: dict[str, list[list[float]]] = {name: [] for name in METHODS[1:]}
    words = [own.word_scores(sample) for sample in range(len(own.scores))]
    for name in numbers:
        for sample, mine in enumerate(words):
            theirs = found[name].word_scores(sample)
            a, b = (torch.tensor([score for _, score in one], dtype=torch.float64) for one in (mine, theirs))
            numbers[name].append([float(rank_correlation(a, b)), _common(a, b)])
    return numbers


def _common(a: Tensor, b: Tensor) -> float:
    count = min(TOP, len(a))
    best = [set(one.topk(count).indices.tolist()) for one in (a, b)]
    return len(best[0] & best[1]) / count


def study(bundle: mhex.Bundle, data: TextSet, count: int, seed: int) -> dict[str, tuple[Interval, Interval]]:
    """Agreement with the heads over the first texts."""
    rows: dict[str, list[list[float]]] = {name: [] for name in METHODS[1:]}
    for start in range(0, count, BATCH):
        part = agreement(explained(bundle, data.texts[start : min(start + BATCH, count)], seed))
        for name, numbers in part.items():
            rows[name] += numbers
        print(f"{min(start + BATCH, count)} of {count} texts", flush=True)
    columns = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in rows.items()}
    return {name: (interval_of(one[:, 0], seed), interval_of(one[:, 1], seed)) for name, one in columns.items()}


def reading(found: dict[str, tuple[Interval, Interval]]) -> str:
    """What the numbers show, in words."""
    order = sorted(found, key=lambda name: -found[name][0].mean)
    first, last = order[0], order[-1]
    none = [name for name in order if not found[name][0].above]
    words = (
        f"Of these methods, `{first}` ranks words most like the heads do (rank correlation {found[first][0]}) and "
        f"`{last}` least ({found[last][0]})."
    )
    if none:
        words += f" For {', '.join(f'`{name}`' for name in none)} the interval does not lie above 0."
    return words + (
        " Agreement is no proof of being right: which scores are faithful is measured by `mhex bench mhex-agnews`. "
        "The heads' scores are sums over the first three blocks, where a token has seen little of the others, as in "
        "the paper."
    )


def main() -> None:
    """Measure, draw and write."""
    wanted = parser_of(__doc__, 128, "test texts").parse_args()
    started, bundle, data = time.perf_counter(), mhex.load(MODEL), load_ag_news("test")
    bundle.model.to(wanted.device)
    count = min(wanted.images, len(data))
    found = study(bundle, data, count, wanted.seed)
    seen = explained(bundle, TEXTS, wanted.seed)
    sheet = comparison(
        [seen[name] for name in DRAWN], samples=range(len(TEXTS)), title="Which words speak for the topic?"
    )
    picture = save_picture(
        sheet, wanted.out / "images" / "agnews-tokens.png", "Words of three made-up news items coloured by four methods"
    )
    lines = [
        [f"`{name}`", *found[name], found[name][0].count] for name in sorted(found, key=lambda n: -found[n][0].mean)
    ]
    write_page(
        wanted.out,
        "token-pictures",
        [
            "# Tokens of news items",
            f"Scores of words for the predicted topic by `{MODEL}`: its heads (`mhex`) beside methods that need none.",
            made_by(wanted, f"{count} test items of AG News", time.perf_counter() - started),
            "Three items that were made up for this picture:",
            picture,
            "## How far methods agree with the heads",
            f"Per text: Spearman's rho of the scores of words, and the share of the heads' {TOP} highest words that "
            f"are among the {TOP} highest of the method.",
            table(["method", "rank correlation", f"common of top {TOP}", "texts"], lines),
            "## Reading",
            reading(found),
        ],
    )


if __name__ == "__main__":
    main()
