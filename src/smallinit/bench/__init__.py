"""The benchmark: one training step of ours beside other people's, measured in one run on this machine (`make bench`).

`case` and `setup` say what is trained, `contestants` and `peers` train it, `worker` and `driver` take the time,
`report` writes the tables, and `command` does all of it.
"""
