"""What the HTTP layer must not load."""

import subprocess
import sys


def test_the_http_layer_leaves_torch_alone():
    code = "import sys, pelton.http.app, pelton.http.server; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
