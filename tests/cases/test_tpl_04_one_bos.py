"""A prompt has one BOS where the model wants one, whichever endpoint it comes by, and none where it wants none.

Reported: two BOS because template and tokenizer both write one, or a second one before text that already has it
(vllm#9519, vllm#6699, vllm#55288, sglang#888, abetlen/llama-cpp-python#1501). The rule of completions: what the
tokenizer adds is added, but text that begins with BOS gets no second one.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from pelton.tokenizer import Tokenizer

from fakes import Client, FakeEngine

BOS, EOS = "<s>", "</s>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
MESSAGES = [{"role": "user", "content": "hello"}]


def save(folder: Path, *, wants_bos: bool) -> Path:
    """A byte-level tokenizer.json with its small files; its post-processor writes BOS if wanted."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (BOS, EOS)])
    if wants_bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, backend.token_to_id(BOS))]
        )
    backend.save(str(folder / "tokenizer.json"))
    template = TEMPLATE if wants_bos else TEMPLATE.replace("{{ bos_token }}", "")
    config = {"bos_token": BOS, "eos_token": EOS, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8"
    )
    return folder


@pytest.fixture(params=[True, False], ids=["wants BOS", "wants none"])
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FakeEngine, Client, Any, int]:
    """(engine, client, the reference tokenizer, how many BOS a prompt has)."""
    folder = save(tmp_path, wants_bos=request.param)
    engine = FakeEngine(script=[65], tokenizer=Tokenizer.from_directory(folder))
    return engine, Client.of(engine), transformers.AutoTokenizer.from_pretrained(folder), int(request.param)


def test_tpl_04_a_chat_has_one_bos_and_the_reference_s_ids(setting: tuple[FakeEngine, Client, Any, int]):
    engine, client, reference, num_bos = setting
    assert client.post("/v1/chat/completions", {"messages": MESSAGES}).status_code == 200
    ids = list(engine.calls[0].prompt_ids)
    assert ids.count(reference.bos_token_id) == num_bos
    assert ids == reference.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert client.post("/tokenize", {"messages": MESSAGES}).json()["tokens"] == ids


def test_tpl_04_a_completion_has_what_the_tokenizer_adds(setting: tuple[FakeEngine, Client, Any, int]):
    engine, client, reference, num_bos = setting
    assert client.post("/v1/completions", {"prompt": "hello"}).status_code == 200
    ids = list(engine.calls[0].prompt_ids)
    assert ids == reference("hello")["input_ids"]
    assert ids.count(reference.bos_token_id) == num_bos
    assert client.post("/tokenize", {"prompt": "hello"}).json()["tokens"] == ids


def test_tpl_04_text_that_begins_with_bos_gets_no_second_one(setting: tuple[FakeEngine, Client, Any, int]):
    engine, client, reference, _ = setting
    assert client.post("/v1/completions", {"prompt": f"{BOS}hello"}).status_code == 200
    ids = list(engine.calls[0].prompt_ids)
    assert ids == [reference.bos_token_id, *reference("hello", add_special_tokens=False)["input_ids"]]
    assert client.post("/tokenize", {"prompt": f"{BOS}hello"}).json()["tokens"] == ids


def test_tpl_04_a_batch_has_the_ids_of_each_prompt_alone(setting: tuple[FakeEngine, Client, Any, int]):
    engine, client, _, _ = setting
    texts = ["hello", f"{BOS}hello", "é", f"{BOS}"]
    for text in texts:
        client.post("/v1/completions", {"prompt": text})
    alone = [call.prompt_ids for call in engine.calls]
    engine.calls.clear()
    client.post("/v1/completions", {"prompt": texts})
    assert [call.prompt_ids for call in engine.calls] == alone


def test_tpl_04_ids_are_taken_as_they_are(setting: tuple[FakeEngine, Client, Any, int]):
    engine, client, reference, _ = setting
    for ids in ([65, 66], [reference.bos_token_id, 65], [reference.bos_token_id] * 2):
        client.post("/v1/completions", {"prompt": ids})
        assert list(engine.calls[-1].prompt_ids) == ids


def test_tpl_04_special_tokens_can_be_switched(setting: tuple[FakeEngine, Client, Any, int]):
    engine, client, reference, _ = setting
    client.post("/v1/completions", {"prompt": "hello", "add_special_tokens": False})
    assert reference.bos_token_id not in engine.calls[-1].prompt_ids
    client.post("/v1/chat/completions", {"messages": MESSAGES, "add_special_tokens": True})
    assert engine.calls[-1].prompt_ids.count(reference.bos_token_id) <= 1
