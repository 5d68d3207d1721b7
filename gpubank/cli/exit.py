"""How commands end: see `gpubank.exit`."""

from gpubank.exit import clean_exit

__all__ = ["clean_exit"]
