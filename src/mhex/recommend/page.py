"""The page of a recommendation: the answer, the table, pictures, and how it was made, handed to `mhex.viz`."""

import json
import math

from mhex.errors import by_reason
from mhex.judge import report as about
from mhex.judge.controls import RANDOM
from mhex.judge.page import cost_html, curves_html, facts_html, map_cards, sections_of
from mhex.judge.report import Evaluation
from mhex.judge.store import explanations_from
from mhex.recommend.answer import Recommendation
from mhex.recommend.race import spoken
from mhex.stats.simultaneous import MIN_IMAGES
from mhex.viz.charts import box_figure, styles_of
from mhex.viz.pages import charts_html, page, part, sample_html

_BEST, _WORST = 3, 1  # methods whose maps are shown, from both ends of the table
_TEMPLATE = "recommendation.html"


def recommendation_page(advice: Recommendation) -> str:
    """The whole page of a recommendation, in HTML."""
    entry, duration, budget = _evaluation(advice), spoken(advice.used), spoken(advice.budget)
    pieces = {
        **first_pieces(advice),
        "Maps": _pictures(advice, entry),
        "Behind the best": _behind(advice),
        "Curves": curves_html(entry),
        "Cost per explanation": cost_html(entry),
        "Not raced": _left_out(advice),
        "Score and race": part("course", _TEMPLATE, advice=advice, used=duration, budget=budget),
        "How it was made": facts_html(entry),
    }
    title = f"Which method explains {advice.call['model']} best?"
    return page(title, advice.sentences()[0], sections_of(_TEMPLATE, pieces, few=MIN_IMAGES))


def first_pieces(advice: Recommendation) -> dict[str, str]:
    """The answer as a list with the call that uses it, and the table of methods, in HTML by title."""
    return {
        "Answer": part("answer", _TEMPLATE, advice=advice, budget=spoken(advice.budget)),
        "Methods": part("standings", _TEMPLATE, advice=advice),
    }


def _evaluation(advice: Recommendation) -> Evaluation:
    """The rows as pages of evaluations have them."""
    call = {**advice.call, "command": about.command(), "versions": about.versions()}
    facts = json.loads(advice.report.rows.column("run")[0].as_py())
    raced = advice.report.only([line.method for line in advice.table])
    maps = advice.saved_maps
    explanations = {} if maps is None else explanations_from(maps.photos.table(), maps.maps.table())
    return Evaluation("recommendation", raced, facts, [call], explanations)


def _pictures(advice: Recommendation, entry: Evaluation) -> str:
    """Maps of the best methods, of the last one, and of random maps."""
    methods = [line for line in advice.table if not line.control]
    random = [line for line in advice.table if line.method == RANDOM]
    ends = [*methods[:_BEST], *methods[_BEST:][-_WORST:], *random]
    standings = {line.method: line.standing for line in ends if not line.control}
    explanations = {
        image: {line.method: maps[line.method] for line in ends if line.method in maps}
        for image, maps in entry.drawn.items()
    }
    return "".join(sample_html(image, map_cards(maps, standings)) for image, maps in explanations.items() if maps)


def _behind(advice: Recommendation) -> str:
    """Paired differences per sample, as boxes; empty where there is no second method."""
    best, *lines = advice.table
    names = [line.method for line in lines if not line.control]
    if not names or advice.few:
        return ""
    styles = styles_of(names, [line.method for line in lines if line.control])
    rows = {name: (advice.values[best.method] - advice.values[name]).tolist() for name in styles}
    title = f"Behind {best.method}"
    chart = box_figure(title, "score of the best less that of the method", rows, styles)
    return charts_html({f"{title}: boxes of {', '.join(rows)}": chart})


def _left_out(advice: Recommendation) -> str:
    """Methods that were not raced, those with the same reason together, the quickest first; empty without any."""
    names = sorted(advice.left_out, key=lambda name: advice.too_slow.get(name, math.inf))
    groups = by_reason({name: advice.left_out[name] for name in names})
    return part("not_raced", _TEMPLATE, groups=groups, too_slow=advice.too_slow) if groups else ""
