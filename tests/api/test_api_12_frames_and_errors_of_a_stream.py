"""The role comes first, [DONE] last; an error in the middle is an event before [DONE], an earlier one a status."""

import pytest

from pelton.errors import EngineDeadError, RequestError

from fakes import Client, FakeEngine, parse_events

URLS = ["/v1/completions", "/v1/chat/completions"]
BODY = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "stream": True}


def test_api_12_the_first_chat_delta_is_the_role_with_empty_content():
    first = Client.of(FakeEngine()).events("/v1/chat/completions", BODY)[0]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("the request failed", status=500), 500),
        (EngineDeadError("gone"), 503),
        (RuntimeError("/a/path"), 500),
    ],
    ids=["request", "engine", "bug"],
)
def test_api_12_a_later_error_is_an_event_and_an_earlier_one_a_status(url: str, error: Exception, code: int):
    events = parse_events(Client.of(FakeEngine(fail_after=2, error=error)).post(url, BODY))
    assert [event["error"]["code"] for event in events if "error" in event] == [code]
    assert "error" in events[-1] and "error" not in events[0]
    assert "/a/path" not in events[-1]["error"]["message"]
    response = Client.of(FakeEngine(fail_after=0, error=error)).post(url, BODY)
    assert response.status_code == response.json()["error"]["code"] == code
