"""What every command may end with."""


class Refused(RuntimeError):
    """An error that was expected: the command shows its message, which says what to do, and no traceback."""
