"""Drop-in for `nkilib.experimental.scan`, whose functions this package's own ones extend by keywords."""

from ..functions import selective_scan, ssd

__all__ = ["selective_scan", "ssd"]
