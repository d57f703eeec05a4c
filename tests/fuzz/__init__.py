"""What must hold for any URL, header, address and answer.

In `make test` by Hypothesis (tests/http/outbound/test_fuzz.py); for longer, `PYTHONPATH=tests python -m fuzz`, under
atheris where it is installed (`pip install atheris`).
"""
