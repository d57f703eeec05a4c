"""The crash matrix: every step of every path, met by every fault that can meet it, in real processes.

Reading order: `cells` (what is tried, and what must come out of it), `scenes` (how each path is set up and how its
commit is seen), `points`, `wire` and `refusing` (how a fault is brought to its step), `victim` (the process that meets
it), `running` (one cell from start to verdict), `judging` (the verdict), `page` (the table and the page in the docs).

Must hold: outcomes come from the run, never from here; a cell waits for facts, each with a bound; every execution
beyond the first is explained by a row of the ledger; a cell leaves no process behind.
"""
