"""Tasks made by a program, whose evidence is known: inputs of parts that can be taken away exactly."""

from mhex.lab.truth.scenes import Scenes
from mhex.lab.truth.task import TASKS, Task, register_task

__all__ = ["TASKS", "Scenes", "Task", "register_task"]
