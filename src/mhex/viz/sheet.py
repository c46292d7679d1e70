"""A sheet of paper of matplotlib: for charts, for notebooks, and for files of shapes rather than pixels."""

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from mhex.viz.canvas import render
from mhex.viz.colour import INK, Pixels
from mhex.viz.letters import drawable, font


class Sheet(Figure):
    """A matplotlib figure drawn in inches from the top left corner, which notebooks show without pyplot."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=100, facecolor="white")
        # The user's settings may ask for a layout engine, which would move what is placed by hand.
        self.set_layout_engine("none")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        return render(self, "png", dpi=110)

    def write(
        self, x: float, y: float, text: str, size: float = 9, ink: str = INK, bold: bool = False, centred: bool = False
    ) -> None:
        self.text(
            x,
            self.get_figheight() - y,
            drawable(text),
            color=ink,
            fontproperties=font(size, bold),
            horizontalalignment="center" if centred else "left",
            transform=self.dpi_scale_trans,
            parse_math=False,  # a dollar sign in a class name or a token is a dollar sign
            usetex=False,
        )

    def axes_at(self, x: float, y: float, width: float, height: float, label: str) -> Any:
        """Matplotlib axes over a rectangle in inches whose upper left corner is (x, y)."""
        paper_width, paper_height = self.get_size_inches()
        box = (x / paper_width, 1 - (y + height) / paper_height, width / paper_width, height / paper_height)
        return self.add_axes(box, label=label)

    def paint(self, x: float, y: float, width: float, height: float, pixels: Pixels, label: str) -> None:
        axes = self.axes_at(x, y, width, height, label)
        axes.set_axis_off()
        axes.imshow(pixels, aspect="auto", interpolation="antialiased")

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.add_artist(
            FancyBboxPatch(
                (x, self.get_figheight() - y - height),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.035",
                facecolor=colour,
                edgecolor="none",
                transform=self.dpi_scale_trans,
            )
        )
