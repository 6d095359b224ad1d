"""How Pelton's processes log: one line each, level and message, on stderr."""

import logging

# Libraries that tell of each start and request at level info.
_TALKATIVE = ("uvicorn", "httpx")


def configure_logging(level: str) -> None:
    """Send every logger's messages of at least `level` to stderr; those of libraries only from warnings on."""
    logging.basicConfig(format="%(levelname)s %(message)s", level=level.upper(), force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
