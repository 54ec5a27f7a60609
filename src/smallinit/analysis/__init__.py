"""What is computed from the artifacts of runs: tables, intervals, verdicts."""
