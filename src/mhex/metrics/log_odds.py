"""LOdds: how much log-probability is lost on the way, with the most important units removed first."""

from dataclasses import dataclass

from torch import Tensor

from mhex.metrics import register_metric
from mhex.metrics.curve import CurveMetric, ScoredProtocol
from mhex.perturb import SweepResult


@dataclass(frozen=True)
class LogOddsProtocol(ScoredProtocol):
    """Protocol of the change of `log p` along a sweep; with `true_odds`, of `log(p / (1 - p))`."""

    true_odds: bool = False


def log_odds(result: SweepResult, scored: str = "predicted", first: bool = True, true_odds: bool = False) -> Tensor:
    """`1 / |K| sum_k log(p(x_k) / p(x))`, the most important units removed first, (B,).

    Args:
        result: Result of a sweep with the order `"mif"`.
        scored: Whose probability is read.
        first: Whether the first term, which is 0, counts in `|K|`.
        true_odds: `log(p / (1 - p))` in place of `log p`, which the published name speaks of.
    """
    output = "log-odds" if true_odds else "log-probability"
    curve = result.curve("mif", output, scored)
    return (curve - curve[:, :1])[:, 0 if first else 1 :].mean(1)


@register_metric(
    "log-odds",
    function=log_odds,
    title="How much log-probability is lost on the way, with the most important pixels removed first?",
    paper="Shrikumar et al., DeepLIFT, ICML 2017, arXiv:1704.02685, as used by Wu et al., TokenTM, "
    "CVPR 2024, arXiv:2403.14552",
    passes="T F; 0 beside a metric that reads the same order of the same sweep",
    traps="No odds, whatever its name says: a ratio of probabilities, unless `true_odds` is chosen. A few images "
    "that fall to almost nothing decide the mean.",
    presets={
        "default": LogOddsProtocol("black", 20, scored="predicted"),
        "text": LogOddsProtocol("drop", 20, "token", scored="predicted"),
        "tm": LogOddsProtocol("black", 20, scored="predicted"),
    },
)
class LogOdds(CurveMetric):
    """Mean change of the log-probability over the steps; lower is better."""

    better = (False,)
    protocol: LogOddsProtocol
    orders = ("mif",)

    @property
    def output(self) -> str:
        return "log-odds" if self.protocol.true_odds else "log-probability"
