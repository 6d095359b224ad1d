"""How Pelton's processes log: one line each, level and message, on stderr."""

import logging


def configure_logging(level: str) -> None:
    """Send every logger's messages of at least `level` to stderr."""
    logging.basicConfig(format="%(levelname)s %(message)s", level=level.upper(), force=True)
