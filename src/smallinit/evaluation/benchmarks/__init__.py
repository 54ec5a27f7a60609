"""Published benchmarks, read in place from pinned packages, and measures that say something about a tiny model."""
