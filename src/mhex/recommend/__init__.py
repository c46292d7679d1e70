"""Which method to use: a race on the user's own model and data, under a time budget."""

from mhex.recommend.answer import Recommendation
from mhex.recommend.call import recommend

__all__ = ["Recommendation", "recommend"]
