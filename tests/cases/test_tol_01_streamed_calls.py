"""The deltas of a streamed call join to the unstreamed call.

Reported: arguments that ride in the finish chunk or come twice, joined arguments that are no JSON, markup in the
content (vllm#9693, vllm#44098, vllm-mlx#672).
"""

import pytest

from chat_turns import ARGUMENTS, BODY, ONE, both, scripted


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 1000])
def test_tol_01_a_call_after_text(num_tokens: int):
    engine, client = scripted(ONE, num_tokens_per_delta=num_tokens)
    engine.script = [*engine.script, engine.tokenizer.bos_token_id]  # a bare special token at the end gives nothing
    choice = both(client, BODY)
    assert choice == {
        "message": {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [{"function": {"name": "get_weather", "arguments": ARGUMENTS}}],
        },
        "finish_reason": "tool_calls",
    }
