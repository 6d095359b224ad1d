"""What the engine process loads."""

import subprocess
import sys

CODE = """
import importlib, sys
from pelton.engine.__main__ import load_process
load_process()
import torch
assert not {"tokenizers", "jinja2", "starlette"} & set(sys.modules)
product = torch.ones(2, 3, dtype=torch.bfloat16) @ torch.ones(3, 2, dtype=torch.bfloat16)
assert product.tolist() == [[3.0, 3.0], [3.0, 3.0]]
importlib.import_module("torch._meta_registrations")  # what was left out is not lost
linear = torch.nn.Linear(3, 2, device="meta")
assert linear(torch.ones(5, 3, device="meta")).shape == (5, 2)
"""


def test_the_engine_process_loads_no_tokenizer_and_a_working_torch() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
