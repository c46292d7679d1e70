"""Generated tasks: a decorator each; see `mhex.lab.truth.task`."""
