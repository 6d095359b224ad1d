"""What the engine process loads."""

import subprocess
import sys

CODE = """
import sys
from pelton.engine.__main__ import load_process
load_process()
import torch
assert not {"tokenizers", "jinja2", "starlette", "llguidance"} & set(sys.modules)
product = torch.ones(2, 3, dtype=torch.bfloat16) @ torch.ones(3, 2, dtype=torch.bfloat16)
assert product.tolist() == [[3.0, 3.0], [3.0, 3.0]]
assert "torch._dynamo" not in sys.modules
# What was left out is not lost: the compiler brings it.
assert torch.compile(lambda x: x * 2 + 1, backend="eager")(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]
assert "torch._meta_registrations" in sys.modules
linear = torch.nn.Linear(3, 2, device="meta")
assert linear(torch.ones(5, 3, device="meta")).shape == (5, 2)
"""


def test_the_engine_process_loads_no_tokenizer_no_grammars_and_a_working_torch() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
