"""Everything that becomes a picture or a page. It draws the values that it is handed.

Pictures are drawn by Pillow. Charts, figures for notebooks, and files of shapes (PDF, SVG) are made with matplotlib's
objects: pyplot is never imported, and no setting stays changed.
"""

from mhex.viz.canvas import Canvas
from mhex.viz.charts import cosine_figure, forest_figure, scatter
from mhex.viz.figures import comparison, confidence_figure, figure, save_figure
from mhex.viz.heatmap import overlay
from mhex.viz.pages import Section, page, paragraphs, picture_tag, save_html, to_html

__all__ = [
    "Canvas",
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
