"""`python -m pelton.cli` is the `pelton` command."""

import sys

from pelton.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
