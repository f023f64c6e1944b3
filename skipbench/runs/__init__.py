"""One file an evaluation: data set and checkpoint in, record out. What a command calls, and what
Python's `skipbench.probe(…)` is."""
