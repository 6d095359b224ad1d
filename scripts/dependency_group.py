"""Print the requirements of one [dependency-groups] entry of pyproject.toml, for a pip without --group."""

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
sys.stdout.write("\n".join(pyproject["dependency-groups"][sys.argv[1]]) + "\n")
