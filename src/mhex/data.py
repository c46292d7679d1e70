"""Data sets by name and data of your own, under the name that users know: see `mhex.lab.datasets`."""

from mhex.lab.datasets import *  # noqa: F403
