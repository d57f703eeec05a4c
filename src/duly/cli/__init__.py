"""The `duly` command: reads the environment, puts the parts together, prints.

May import: everything. Touches no table itself. Must hold: an error is one clear sentence on stderr and a non-zero
exit; a secret is printed only where making it is the point; a stop signal drains, a second one aborts.
"""
