"""`python -m mhex` is `mhex`."""

from mhex.cli import main

main()
