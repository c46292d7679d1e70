"""Which method to use: a race on the user's own model and data, under a time budget."""

from mhex.recommend.answer import Recommendation, recommend

__all__ = ["Recommendation", "recommend"]
