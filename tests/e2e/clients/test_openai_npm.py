"""The official JavaScript client of OpenAI."""

import json
import os
import subprocess
from pathlib import Path

from questions import ANSWER, KEY, MODEL, WEATHER_TOOL, check_weather


def test_openai_npm(base_url: str, node_modules: Path) -> None:
    settings = {"BASE_URL": base_url, "KEY": KEY, "MODEL": MODEL, "TOOL": json.dumps(WEATHER_TOOL)}
    done = subprocess.run(
        ["node", "client.mjs"],
        cwd=node_modules,
        env=os.environ | settings,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    check_weather(json.loads(seen.pop("arguments")))
    assert seen == {
        **dict.fromkeys(("answer", "streamed", "final", "response", "response_streamed"), ANSWER),
        "usage": 8,
        "dimensions": 576,
        "error": ["NotFoundError", 404],
    }
