"""Reasoning against memory: two tasks made of numbers, where the scale of the start decides which is learned."""
