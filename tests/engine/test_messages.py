"""Messages survive the wire however the bytes are cut."""

import random

from pelton.config import EngineConfig
from pelton.engine.messages import Abort, Add, Framing, Start, ToEngine, frame
from pelton.model_config import ModelInfo
from pelton.types import SamplingParams

INFO = ModelInfo(
    architecture="LlamaForCausalLM",
    vocab_size=8,
    hidden_size=4,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=2,
    max_position_embeddings=64,
    rope_scaling={"rope_type": "linear", "factor": 2.0},
    eos_token_ids=(2, 0),
)


def test_messages_are_the_same_after_any_cut() -> None:
    params = SamplingParams(seed=-(2**63), logit_bias={3: 1.5}, stop=("a", "🫠"), stop_token_ids=(1, 2))
    messages = [
        Start(EngineConfig(model="m", api_key=("k",)), INFO, "/somewhere"),
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
