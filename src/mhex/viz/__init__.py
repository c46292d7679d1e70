"""The only room that turns tensors into pictures and HTML.

Figures are made with matplotlib's objects: pyplot is never imported and no global setting is changed.
"""

from mhex.viz.charts import cosine_figure, forest_figure, scatter
from mhex.viz.draw import figure, save_figure, save_html
from mhex.viz.grid import comparison, confidence_figure
from mhex.viz.html import Section, page, paragraphs, picture_tag, to_html
from mhex.viz.overlay import overlay

__all__ = [
    "Section",
    "comparison",
    "confidence_figure",
    "cosine_figure",
    "figure",
    "forest_figure",
    "overlay",
    "page",
    "paragraphs",
    "picture_tag",
    "save_figure",
    "save_html",
    "scatter",
    "to_html",
]
