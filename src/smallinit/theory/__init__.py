"""The paper's theory, checked without training: closed forms, simulations with the real modules, and the verdict."""
