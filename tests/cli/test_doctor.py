"""The doctor's findings, with the parts of the system that it reads replaced."""

import dataclasses
import json

import pytest

from pelton.cli import doctor
from pelton.cli.doctor import diagnose, show
from pelton.cli.hardware import Machine, has_cpu_kernels, probe_kernels, probe_machine
from pelton.cli.main import main
from pelton.cli.sizes import show_bytes
from pelton.config import EngineConfig

MACHINE = Machine(
    cpu="Some CPU",
    num_cores=8,
    cpu_quota=None,
    cpu_flags=("avx2", "fma"),
    total_memory=2**34,
    available_memory=2**33,
    transparent_huge_pages="madvise",
    num_huge_pages=0,
)


@pytest.fixture
def examine(monkeypatch):
    """Diagnose a machine with the given kernels; no model is there."""

    def no_model(*args, **settings):
        raise ValueError("run `pelton pull demo` or name a model")

    def examine(machine: Machine, kernels: dict[str, bool] | None):
        monkeypatch.setattr(doctor, "probe_machine", lambda: machine)
        monkeypatch.setattr(doctor, "probe_kernels", lambda: kernels)
        monkeypatch.setattr(doctor, "locate", no_model)
        return diagnose(EngineConfig())

    return examine


def test_missing_kernels_and_models_are_told_with_the_remedy(examine):
    diagnosis = examine(MACHINE, None)
    assert any("install g++ 12 or newer" in line for line in diagnosis.advice)
    assert any("pelton pull demo" in line for line in diagnosis.advice)
    assert diagnosis.model is None
    text = show(diagnosis)
    assert "reference operations (no compiled kernels)" in text
    assert "Some CPU, 8 cores" in text


def test_missing_instructions_are_told_with_what_they_cost(examine):
    diagnosis = examine(MACHINE, {"avx512": True, "avx512_bf16": True, "amx_bf16": False})
    assert [line for line in diagnosis.advice if "amx_bf16" in line] == [
        "no amx_bf16: prefill does not use matrix tiles; long prompts take several times longer"
    ]
    assert "C++ with avx512 avx512_bf16\n" in show(diagnosis)


def test_a_quota_below_the_cores_suggests_fewer_threads(examine):
    diagnosis = examine(dataclasses.replace(MACHINE, cpu_quota=2.5), {})
    assert any("set --num-threads 2" in line for line in diagnosis.advice)


def test_json_on_this_machine(capsys):
    assert main(["doctor", "--json", "--max-model-len", "64", "--kv-cache-memory", "64M"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["num_cores"] >= 1
    assert report["machine"]["total_memory"] >= report["machine"]["available_memory"] > 0
    assert (report["kernels"] is not None) == has_cpu_kernels()
    model = report["model"]
    assert model["architecture"] == "LlamaForCausalLM"
    assert model["max_model_len"] == 64
    assert model["kv_tokens"] == model["kv_cache_memory"] // model["kv_bytes_per_token"]
    assert 0 < model["kv_cache_memory"] <= 64 * 2**20


def test_the_probes_agree_with_the_system():
    machine = probe_machine()
    assert machine.cpu
    kernels = probe_kernels()
    if kernels is not None:
        assert kernels["avx512_bf16"] <= ("avx512_bf16" in machine.cpu_flags)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1024, "1.0 KiB"), (1536 * 2**20, "1.5 GiB"), (2**29, "512 MiB"), (2**50, "1024 TiB")],
)
def test_sizes_for_people(count, text):
    assert show_bytes(count) == text
