"""A load generator of others, and whether its counts are the server's."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from questions import KEY, MODEL


def test_guidellm(server: str, metric: Callable[[str], float], tmp_path: Path) -> None:
    before = metric("pelton:generation_tokens_total")
    report = tmp_path / "report.json"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"prompt": f"Count to {n}: 1 2 3", "output_tokens_count": 16}) + "\n" for n in range(100, 124)
        )
    )
    command = [
        *(str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={server},model={MODEL},api_key={KEY}"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=24"),
        *("--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={report}"),
    ]
    done = subprocess.run(command, capture_output=True, timeout=180, check=False, env=os.environ)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-3000:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (24, 0)
    assert metric("pelton:generation_tokens_total") > before
