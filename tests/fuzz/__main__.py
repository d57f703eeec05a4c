"""`PYTHONPATH=tests python -m fuzz [--seconds 60]`: all properties, guided by coverage under atheris, at random without
it. Ends at the first input that breaks one, which it shows."""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from typing import Any

from fuzz import properties
from fuzz.properties import PIECES


def one_input(data: bytes) -> None:
    """The first byte chooses the property, the rest is its input: pieces by number, and characters as they are."""
    if not data:
        return
    rest = data[1:]
    pieces = [PIECES[byte] if byte < len(PIECES) else chr(byte) for byte in rest]
    text = "".join(pieces) if data[0] & 1 else rest.decode("utf-8", "replace")
    match data[0] >> 1 & 7:
        case 0:
            properties.check_header(text[:20], text[20:])
        case 1:
            properties.check_header("X-" + rest[:5].hex(), text)
        case 2:
            properties.check_address(int.from_bytes(rest[:16].ljust(16, b"\0")), int.from_bytes(rest[16:18]))
        case 3:
            properties.check_answer_head(b"HTTP/1.1 " + rest)
        case 4:
            properties.check_retry_after(text)
        case 5:
            properties.check_any_method(text)
        case 6:
            properties.check_url("http://" + text)
        case _:
            properties.check_url(text)


def main() -> int:
    """0 when the time is over and everything held."""
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("--seconds", type=int, default=60)
    told = parser.parse_args()
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        return _at_random(told.seconds)
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={told.seconds}", "-max_len=400"], one_input)
    atheris.Fuzz()
    return 0


def _at_random(seconds: int) -> int:
    sys.stderr.write("atheris is not installed: inputs are random, not guided by coverage\n")
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = random.randbytes(random.randrange(1, 40))
        try:
            one_input(data)
        except BaseException:
            sys.stderr.write(f"after {done} inputs: {data!r}\n")
            raise
        done += 1
    sys.stdout.write(f"{done} inputs, every property held\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
