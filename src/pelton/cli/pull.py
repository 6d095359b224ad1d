"""`pelton pull`: download a model ahead of its first use."""

import argparse
import sys

from pelton.cli.flags import DEMO_MODEL, Parser
from pelton.weights.hub import locate, pull_demo


def add_arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"Hugging Face id such as ORG/NAME, or {DEMO_MODEL}")
    parser.add_argument("--revision", metavar="TEXT", help="branch, tag or commit")
    parser.add_argument("--download-dir", metavar="FOLDER", help="the Hugging Face cache by default")


def run(args: argparse.Namespace) -> int:
    """Prints the path, alone on stdout, for scripts."""
    if args.model == DEMO_MODEL:
        if args.revision is not None or args.download_dir is not None:
            raise ValueError(f"{DEMO_MODEL} is one fixed file in one place; leave out --revision and --download-dir")
        path = pull_demo(progress=True)
    else:
        path = locate(args.model, revision=args.revision, download_dir=args.download_dir)
    sys.stdout.write(f"{path}\n")
    return 0
