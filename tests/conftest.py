"""What no test may leave behind for the next, and the instruction sets under which kernels are tested."""

import logging
from collections.abc import Iterator

import pytest

from instruction_sets import INSTRUCTION_SETS, limited_to
from live import LiveServer, launched


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
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A real server with the embedded model, one for all tests that only ask it something."""
    with launched(
        tmp_path_factory.mktemp("live") / "log", "--max-model-len", "1024", "--kv-cache-memory", "128M"
    ) as server:
        server.ready()
        server.canary()
        yield server
