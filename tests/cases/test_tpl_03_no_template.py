"""A model without a chat template refuses chats and says what to do; one sent along is used; completions work.

Reported: a made-up template in silence, or a 500 (vllm#18140, vllm#39279).
"""

from typing import Any

import pytest
import tokenizers

from pelton.tokenizer import Tokenizer
from pelton.tokenizer.tokenizer import SpecialTokens

from fakes import BOS, EOS, Client, FakeEngine, tiny_tokenizer

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine() -> FakeEngine:
    backend: tokenizers.Tokenizer = tiny_tokenizer()._backend
    special = SpecialTokens(bos_token=BOS, eos_token=EOS, eos_token_ids=(backend.token_to_id(EOS),), chat_templates={})
    return FakeEngine(script=[65], tokenizer=Tokenizer(backend, special))


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"chat_template": ""}, {"chat_template": None}])
@pytest.mark.parametrize("url", ["/v1/chat/completions", "/tokenize"])
def test_tpl_03_a_chat_is_a_400_that_says_what_to_do(engine: FakeEngine, url: str, fields: dict[str, Any]):
    response = Client.of(engine).post(url, {"messages": USER, **fields})
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]
    assert not engine.calls


def test_tpl_03_a_template_sent_along_is_used(engine: FakeEngine):
    body = {"messages": USER, "chat_template": "<{{ messages[0].content }}>"}
    assert Client.of(engine).post("/v1/chat/completions", body).status_code == 200
    assert engine.tokenizer.decode(engine.calls[0].prompt_ids) == "<hi>"


def test_tpl_03_completions_need_none(engine: FakeEngine):
    assert Client.of(engine).post("/v1/completions", {"prompt": "hi"}).status_code == 200
