"""The comparison with peers: its arithmetic, and one engine measured from start to end."""

import sys
import time
from pathlib import Path

import pytest
from peers.catalog import LLAMA_1B, SMOLLM2, Engine, Setup, parse_pelton_config, peers, pelton, select
from peers.measure import Round, Workload, measure
from peers.report import Row, markdown, summarize_rows
from peers.server import running, stat_fields

SETUP = Setup(cache=Path("/cache"), kv_gib=2, pelton=Path("/bin/pelton"), num_threads=2)
WORKLOAD = Workload(requests={1: 2, 8: 8}, input_len=5, output_len=4, prefix_len=6, idle_seconds=0.2)

# Speaks the protocol of openvino_loop.py: each token takes 1 ms; answers are a token short if told so.
LOOP = """
import json, sys, time
for line in sys.stdin:
    now, outcomes = time.perf_counter(), []
    for prompt in json.loads(line)["prompts"]:
        count = prompt["max_tokens"] - {short}
        outcomes.append(dict(started=now, ended=now + 0.001 * count, ttft=0.001, gaps=[0.001] * (count - 1),
                             prompt_tokens=len(prompt["text"].split()), output_tokens=count, num_chunks=count))
    print(json.dumps(outcomes), flush=True)
"""


def loop_engine(short: int = 0) -> Engine:
    command = (sys.executable, "-c", LOOP.replace("{short}", str(short)))
    return Engine(name="loop", command=command, bits=8, head_bits=8, speaks_http=False)


def row(name: str, *, is_peer: bool, **metrics: float) -> Row:
    engine = Engine(name=name, command=(), bits=16, head_bits=16, is_peer=is_peer)
    return Row(engine, [Round(metrics=metrics)])


def test_shapes_count_the_weights_of_the_real_models() -> None:
    assert SMOLLM2.layer_weights == 30 * (576 * 576 * 2 + 2 * 576 * 192 + 3 * 576 * 1536) == 106_168_320
    assert SMOLLM2.layer_weights + SMOLLM2.head_weights + 61 * 576 == 134_515_008  # Hugging Face's count, norms added
    assert LLAMA_1B.layer_weights == 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192)
    assert LLAMA_1B.kv_bytes_per_token == 32_768


def test_ratios_above_one_are_better_than_the_best_peer_whatever_the_metric() -> None:
    mine = row("pelton-x", is_peer=False, tok_s_c1=150.0, start_s=2.0, other_load=1.0)
    slow = row("vllm", is_peer=True, tok_s_c1=100.0, start_s=50.0, other_load=1.0)
    quick = row("llama", is_peer=True, tok_s_c1=75.0, start_s=1.0, other_load=1.0)
    mine.rounds.append(Round(metrics={"tok_s_c1": 250.0}))
    summarize_rows([mine, slow, quick], SMOLLM2, Workload(requests={}), {}, "read_2")
    assert mine.medians == {"tok_s_c1": 200.0, "start_s": 2.0, "other_load": 1.0}
    assert mine.ratios == {"tok_s_c1": 2.0, "start_s": 0.5}
    assert quick.ratios == {"tok_s_c1": 0.75, "start_s": 1.0}


def test_shares_of_the_limits() -> None:
    metrics = {"tok_s_c1": 64.0, "prompt_tokens_c1": 257.0, "requests_s_c1": 0.5, "ttft_p50_ms_c1": 100.0}
    mine = row("pelton-x", is_peer=False, tpot_ms_c1=10.0, **metrics)
    limits = {"bf16": 1e12, "int8": 2e12, "read_2": 50e9}
    summarize_rows([mine], SMOLLM2, Workload(requests={1: 6}), limits, "read_2")
    layers, head = 106_168_320, 28_311_552
    operations = 2 * (layers * 385 + head * 128)
    assert mine.shares["bf16_c1"] == pytest.approx(operations * 0.5 / 1e12)
    assert mine.shares["int8_prefill"] == pytest.approx(2 * (layers * 257 + head) / 0.1 / 2e12)
    context = (257 + 64) * 30 * 2 * 2 * 192  # bf16 keys and values
    assert mine.shares["bandwidth"] == pytest.approx((2 * (layers + head) + context) / 0.01 / 50e9)


def test_a_measured_engine_has_every_metric_of_the_tables(tmp_path: Path) -> None:
    each = measure(loop_engine(), WORKLOAD, 0, tmp_path)
    assert each.metrics["prompt_tokens_c8"] == 5
    assert each.metrics["ttft_p50_ms_c8"] == pytest.approx(1.0)
    assert each.metrics["tpot_ms_c8"] == pytest.approx(1.0)
    assert each.metrics["tok_s_c8"] == pytest.approx(8 * 4 / 0.004)
    assert each.metrics["prefix_prompt_tokens"] == 6
    assert 0 < each.metrics["start_s"] < 30
    assert 0.001 < each.metrics["memory_gib"] < 1
    assert not [problem for problem in each.problems if "others kept" not in problem]
    rows = [Row(loop_engine(), [each])]
    summarize_rows(rows, SMOLLM2, WORKLOAD, {"bf16": 1e12, "int8": 2e12, "read_2": 5e10}, "read_2")
    assert "| - |" not in markdown(rows, SMOLLM2, WORKLOAD)


def test_answers_of_another_length_are_reported(tmp_path: Path) -> None:
    problems = measure(loop_engine(short=1), WORKLOAD, 0, tmp_path).problems
    assert "8 clients: answers of 3 to 3 tokens instead of 4" in problems


def test_an_engine_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    program = "import sys; sys.stderr.write('no such model'); sys.exit(3)"
    for speaks_http in (True, False):
        engine = Engine(
            name="broken", command=(sys.executable, "-c", program), bits=8, head_bits=8, speaks_http=speaks_http
        )
        with pytest.raises(RuntimeError, match="no such model"):
            measure(engine, WORKLOAD, 0, tmp_path)


def test_processes_of_processes_are_counted_and_stopped(tmp_path: Path) -> None:
    spin = "import time; begun = time.process_time()\nwhile time.process_time() - begun < 0.3: pass\ntime.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    with running(Engine(name="tree", command=(sys.executable, "-c", parent), bits=8, head_bits=8), tmp_path) as server:
        deadline = time.monotonic() + 20
        while (server.cpu_seconds() < 0.3 or len(server.processes()) < 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.cpu_seconds() >= 0.3
        inner = server.processes()[1]
        assert server.memory() > 4 * 2**20
    deadline = time.monotonic() + 10
    while stat_fields(inner)[:1] not in ([], ["Z"]) and time.monotonic() < deadline:  # a dead one waits for init
        time.sleep(0.02)
    assert stat_fields(inner)[:1] in ([], ["Z"])


def test_engines_are_chosen_by_name_or_its_beginning() -> None:
    engines = [pelton(SMOLLM2, SETUP, "int8", ["--quantize", "int8"]), *peers(SMOLLM2, SETUP)]
    assert [each.name for each in select(engines, ["llama-q4_0", "pelton", "vllm"])] == [
        "pelton-int8",
        "vllm-bf16",
        "vllm-w8a8",
        "llama-q4_0",
    ]
    with pytest.raises(ValueError, match="'vll'"):
        select(engines, ["vll"])


def test_a_configuration_of_pelton_names_its_row_flags_and_model() -> None:
    name, flags = parse_pelton_config("native={q4_0} --weight-format native")
    engine = pelton(LLAMA_1B, SETUP, name, flags)
    assert engine.name == "pelton-native"
    assert engine.bits == 4.5
    assert engine.command[1:5] == ("serve", "/cache/models/llama-1b/q4_0.gguf", "--weight-format", "native")
    assert "/cache/models/llama-1b/bf16" in pelton(LLAMA_1B, SETUP, "dense", []).command
    assert pelton(SMOLLM2, SETUP, "dense", []).command[2] == "--port"
    with pytest.raises(ValueError, match="int8"):
        parse_pelton_config("--quantize int8")
