"""Downloads from a stub of the Hugging Face Hub on loopback, each in a process of its own as users run it."""

import json
import os
import re
import subprocess
import sys

import pytest

from weights.stub_hub import StubHub

SAFETENSORS = {
    "config.json": b'{"from": "the hub"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": b"one",
    "model-00002-of-00002.safetensors": b"two",
    "model.safetensors.index.json": b"{}",
    "consolidated.safetensors": b"the same again",
    "pytorch_model.bin": b"the same as a pickle",
    "original/model.pth": b"the same as a pickle",
    "README.md": b"",
}
GGUF = {"m.Q4_0.gguf": b"GGUF four", "m.Q8_0.gguf": b"GGUF eight", "m-f16.gguf": b"GGUF half", "README.md": b""}
BIG = 24 << 20  # huggingface_hub writes, and so can resume, in steps of 10 MiB
REPOSITORIES = {
    "org/model": SAFETENSORS,
    "org/quantized": GGUF,
    "org/only-one": {"m.Q4_0.gguf": b"GGUF alone"},
    "org/pickles": {"config.json": b"{}", "pytorch_model.bin": b""},
    "org/nothing": {"config.json": b"{}"},
    "org/big": {"config.json": b"{}", "model.safetensors": os.urandom(BIG)},
}
SCRIPT = """
import json, sys
from pelton.weights.hub import locate
answers = []
for model, arguments in json.loads(sys.argv[1]):
    try:
        answers.append(str(locate(model, download_dir=sys.argv[2], progress=False, **arguments)))
    except ValueError as error:
        answers.append(f"error: {error}")
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def hub():
    with StubHub(REPOSITORIES, gated=("org/gated",), cut="model.safetensors") as server:
        yield server


@pytest.fixture
def locate_all(tmp_path):
    """Call `locate` for each (model, arguments) in one process with the given environment."""

    def call(calls, **environment):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        settings = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", **environment}
        command = [sys.executable, "-c", SCRIPT, json.dumps(calls), str(tmp_path / "cache")]
        result = subprocess.run(
            command, env=kept | settings, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        assert "Fetching" not in result.stderr  # progress=False
        return json.loads(result.stdout)

    return call


def test_a_model_is_downloaded_without_what_is_not_needed_and_stays_usable_offline(hub, locate_all, tmp_path):
    (folder,) = locate_all([("org/model", {})], HF_ENDPOINT=hub.url)
    found = {path.name: path.read_bytes() for path in (tmp_path / "cache").glob("models--org--model/snapshots/*/**/*")}
    left_out = {"consolidated.safetensors", "pytorch_model.bin", "original/model.pth", "README.md"}
    assert found == {name: data for name, data in SAFETENSORS.items() if name not in left_out}
    assert folder.startswith(str(tmp_path / "cache"))
    calls = [("org/model", {}), ("org/model", {"revision": "main"}), ("org/other", {})]
    for environment in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        *same, missing = locate_all(calls, **environment)
        assert same == [folder, folder]
        assert missing.startswith("error: org/other: not in the cache, and ")


def test_a_gguf_file_is_picked_by_name_or_quantization(hub, locate_all):
    calls = [f"org/quantized{pick}" for pick in (":m.Q4_0.gguf", ":Q8_0", ":q4_0", ":F16", ":Q6_K", "", ":0")]
    answers = locate_all([(model, {}) for model in [*calls, "org/only-one"]], HF_ENDPOINT=hub.url)
    names = [answer.split("/")[-1] for answer in answers]
    assert names[:4] == ["m.Q4_0.gguf", "m.Q8_0.gguf", "m.Q4_0.gguf", "m-f16.gguf"]
    offer = "there are: org/quantized:m-f16.gguf, org/quantized:m.Q4_0.gguf, org/quantized:m.Q8_0.gguf"
    assert answers[4] == f"error: org/quantized: no GGUF file fits 'Q6_K'; {offer}"
    assert answers[5] == f"error: org/quantized: holds several GGUF files, pick one; {offer}"
    assert answers[6] == "error: org/quantized: '0' fits m.Q4_0.gguf, m.Q8_0.gguf; name one of the files"
    assert names[7] == "m.Q4_0.gguf"


def test_a_broken_connection_is_resumed(hub, locate_all, tmp_path):
    (folder,) = locate_all([("org/big", {})], HF_ENDPOINT=hub.url)
    (weights,) = (tmp_path / "cache").glob("**/snapshots/*/model.safetensors")
    assert weights.read_bytes() == REPOSITORIES["org/big"]["model.safetensors"]
    ranges = [
        ranges for method, path, ranges in hub.requests if method == "GET" and path.endswith("/model.safetensors")
    ]
    assert [*map(bool, ranges)] == [False, True]
    assert folder == str(weights.parent)


def test_what_fails_is_said_in_one_line_with_the_fix(hub, locate_all):
    calls = {
        ("org/gated", None): rf"gated; accept its terms at {hub.url}/org/gated, then .*`hf auth login` or set HF_TOKEN",
        ("org/missing", None): rf"no such local path, and no such model on {hub.url}, or a private one; check the name",
        ("org/model", "v9"): "has no revision 'v9'; check --revision",
        ("org/pickles", None): r"holds pickles only \(.bin, .pt\), which can run code",
        ("org/nothing", None): "holds neither safetensors nor GGUF files",
        ("org/mod..el", None): "",
    }
    answers = locate_all([(model, {"revision": revision}) for model, revision in calls], HF_ENDPOINT=hub.url)
    for (model, _), message, answer in zip(calls, calls.values(), answers, strict=True):
        assert "\n" not in answer
        assert re.match(f"error: {model}: {message}", answer)


def test_a_server_in_trouble_is_named(locate_all):
    with StubHub({}, status=500) as broken:
        (answer,) = locate_all([("org/model", {})], HF_ENDPOINT=broken.url)
    assert answer == f"error: org/model: not in the cache, and {broken.url} cannot be reached or has a fault; " + (
        "check the network or HF_ENDPOINT, or give a path"
    )
