"""Messages survive the wire however the bytes are cut."""

import random

from pelton.config import EngineConfig
from pelton.engine.protocol import Abort, Add, Framing, Start, ToEngine, frame
from pelton.types import SamplingParams


def test_messages_are_the_same_after_any_cut() -> None:
    params = SamplingParams(seed=-(2**63), logit_bias={3: 1.5}, stop=("a", "🫠"), stop_token_ids=(1, 2))
    messages = [
        Start(EngineConfig(model="m", api_key=("k",)), "/somewhere"),
        Add(1, tuple(range(3000)), params, -5, "salt"),
        Abort((1, 2, 3)),
    ]
    data = b"".join(frame(message) for message in messages)
    rng = random.Random(0)
    for _ in range(50):
        framing, received, start = Framing(ToEngine), [], 0
        while start < len(data):
            end = start + rng.choice([1, 3, 100, 5000])
            received += framing.feed(data[start:end])
            start = end
        assert received == messages
