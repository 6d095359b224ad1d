"""`pelton pull` hands its arguments on and prints the path alone."""

from pathlib import Path

from pelton.cli import pull
from pelton.cli.main import main


def test_demo(monkeypatch, capsys):
    monkeypatch.setattr(pull, "pull_demo", lambda progress: Path("/cache/demo.gguf") if progress else None)
    assert main(["pull", "demo"]) == 0
    assert capsys.readouterr() == ("/cache/demo.gguf\n", "")


def test_a_repository(monkeypatch, capsys):
    def locate(model: str, *, revision: str | None, download_dir: str | None) -> Path:
        return Path("/cache") / model / str(revision) / str(download_dir)

    monkeypatch.setattr(pull, "locate", locate)
    assert main(["pull", "org/name", "--revision", "v1", "--download-dir", "models"]) == 0
    assert capsys.readouterr().out == "/cache/org/name/v1/models\n"


def test_a_model_that_cannot_be_had_is_one_line(monkeypatch, capsys):
    def locate(model: str, **settings: object) -> Path:
        raise ValueError(f"{model}: no such model")

    monkeypatch.setattr(pull, "locate", locate)
    assert main(["pull", "org/name"]) == 2
    assert capsys.readouterr().err == "pelton: error: org/name: no such model\n"
