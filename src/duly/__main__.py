"""`python -m duly` is the `duly` command."""

from duly.cli.main import run

if __name__ == "__main__":
    run()
