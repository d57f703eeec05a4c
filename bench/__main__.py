"""`python -m bench [NAME …] [--quick] [--check]`: run all programs, or the named ones, one after the other."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from rich.console import Console

from bench.programs import PROGRAMS
from bench.results import keep, machine, show
from bench.setting import open_setting
from duly.cli.stopping import run_loop


def main() -> int:
    """0 when every program ran; with --check, 1 when a goal was missed. A program that breaks raises."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Duly on a private PostgreSQL.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}; none: all of them")
    parser.add_argument("--quick", action="store_true", help="a smoke run: small numbers that prove nothing")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    told = parser.parse_args()
    unknown = [name for name in told.names if name not in PROGRAMS]
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")

    console = Console()
    missed = []
    for name in told.names or PROGRAMS:
        with open_setting(told.quick) as setting:
            about = machine(setting.server.version)
            program = PROGRAMS[name]
            finding = run_loop(partial(program, setting))
        show(finding, keep(finding, about, told.quick), console)
        if finding.met is False:
            missed.append(name)
    return 1 if told.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
