"""A Hypothesis state machine on the engine: a small pure model says what must be, PostgreSQL is compared with it after
every step.

- `model.py`: what a job is and what each edge does to it, with what open transactions have not committed yet
- `statements.py`: each statement of the engine beside what it must answer and change
- `sessions.py`: the connections, and how time is made to pass · `checks.py`: database against model
- `stage.py`: how a statement is run, waits, or is given up · `drawing.py`: what rules draw
- `clients.py`, `workers.py`, `upkeep.py`: the rules · `test_machine.py`: the edges to take, and the run

A new statement means: its edge in the model, a `Statement`, a rule, and the names of its edges in `EDGES`.
"""
