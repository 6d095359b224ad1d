"""What no test may leave behind for the next, and what tests share: instruction sets and the canary."""

import logging
from collections.abc import Iterator

import pytest

from instruction_sets import INSTRUCTION_SETS, limited_to

from canary import Canary, running_canary


@pytest.fixture(autouse=True)
def _same_logging() -> Iterator[None]:
    """Commands configure the root logger, on the standard error that pytest captures for one test only."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs once under each instruction set of this machine."""
    with limited_to(request.param):
        yield request.param


@pytest.fixture(scope="session")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    """A real server that all tests of the session share; those that use it are marked e2e."""
    with running_canary(tmp_path_factory.mktemp("canary")) as canary:
        yield canary
