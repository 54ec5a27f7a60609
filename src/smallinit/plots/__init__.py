"""Figures: one style, one function a figure; each takes data frames and returns a matplotlib Figure."""
