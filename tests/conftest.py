"""What no test may leave behind for the next."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _same_logging() -> Iterator[None]:
    """Commands configure the root logger, on the standard error that pytest captures for one test only."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)
