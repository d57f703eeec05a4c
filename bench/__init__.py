"""Benchmarks: programs that measure Duly on a private PostgreSQL of their own. Never imported by `duly`, never a
timed test.

May import: everything of `duly`, psutil, asyncpg. Must hold: every figure that is judged is a ratio inside one
interleaved run, or a limit that the run itself states; every loop is bounded; a program leaves no process and no
folder behind.

Reading order: `setting` (the server and its databases), `figures`, `finding` and `results` (numbers, judged and
kept), `tally` and `processes` (what the measured processes tell us), `draining` (one measured drain); then the
programs, one a file, listed in `programs`. `soak` stands alone: it measures nothing, it breaks things and audits what
comes of it (`soaking`, `skewed_clock`). `clients` stands alone too: it compares HTTP clients (`client_candidates`) for
docs/adr/0002. `*_process` modules are run as processes of their own.
"""
