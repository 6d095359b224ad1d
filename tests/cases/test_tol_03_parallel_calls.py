"""Several calls in one answer, or exactly one where the client wants no more.

Reported: `parallel_tool_calls` false that is ignored, calls that go to the reasoning where the template has switched
it off (vllm#26233, dynamo#8636).
"""

import pytest

from chat_turns import BODY, STYLED, TWO, both, calls_of, scripted
from fakes import CHAT_TEMPLATE


@pytest.mark.parametrize("style", STYLED)
@pytest.mark.parametrize("parallel", [None, True, False])
def test_tol_03_two_calls_in_every_style(style: str, parallel: bool | None):
    _, client = scripted(STYLED[style], tool_call_parser=style)
    choice = both(client, {**BODY, "parallel_tool_calls": parallel})
    calls = [("get_weather", {"city": "Bern"}), ("get_time", {"city": "Rome"})]
    assert calls_of(choice) == (calls[:1] if parallel is False else calls)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert "reasoning" not in choice["message"]


@pytest.mark.parametrize("enabled", [True, False])
def test_tol_03_a_template_decides_whether_the_turn_begins_inside_the_reasoning(enabled: bool):
    template = (
        CHAT_TEMPLATE + "{% if enable_thinking is not defined or enable_thinking %}<think>\n"
        "{% else %}<think>\n\n</think>\n\n{% endif %}"
    )
    _, client = scripted("Well.\n</think>\n" + TWO if enabled else TWO)
    body = {**BODY, "chat_template": template, **({} if enabled else {"reasoning_effort": "none"})}
    choice = both(client, body)
    assert len(calls_of(choice)) == 2
    assert choice["message"].get("reasoning") == ("Well." if enabled else None)
    assert choice["message"]["content"] is None
