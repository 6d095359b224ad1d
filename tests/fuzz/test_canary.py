"""The canary itself answers as recorded, as often as it is asked."""

import pytest

from canary import Canary

pytestmark = pytest.mark.e2e


def test_the_canary_answers_again_and_again(canary: Canary):
    for _ in range(3):
        canary.check()


def test_the_canary_s_memory_and_gauges_can_be_read(canary: Canary):
    assert canary.memory_bytes() > 100 * 2**20
    assert canary.gauge("pelton:num_requests_running") == 0
