"""Progress with rate and time left, on stderr: few lines, no carriage returns, readable in a log file.

Results go to stdout; stderr is never kept in executed notebooks, so that timings do not make them differ.
"""

import sys
import time
from types import TracebackType

LINES = 40  # at most about so many lines for one task


def duration(seconds: float) -> str:
    """`75` -> `1m15s`, short enough for a progress line."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class Progress:
    """Report work as it goes: `with Progress(total, "train", "tokens") as bar: bar.update(n, loss=3.2)`.

    A line is printed after each 1/LINES of the work, and at least every 15 seconds while the line budget lasts.
    """

    def __init__(self, total: int, label: str, unit: str = "", start: int = 0):
        self.total, self.label, self.unit = max(total, 1), label, unit
        self.done = self.start = start
        self.begun = self.printed = time.monotonic()
        self.lines = 0
        self.next_line = start + total / LINES

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.lines:
            self._line(f"done in {duration(time.monotonic() - self.begun)}")

    def update(self, n: int, **shown: float) -> None:
        """Count `n` more units of work; `shown` are numbers to print beside the rate."""
        self.done += n
        now = time.monotonic()
        late = now - self.printed > 15 and self.lines < 2 * LINES
        if now - self.begun > 1 and (late or (self.done >= self.next_line and now - self.printed > 1)):
            rate = (self.done - self.start) / (now - self.begun)
            numbers = "  ".join(f"{key} {number:.4g}" for key, number in shown.items())
            left = duration((self.total - self.done) / rate) if rate else "?"
            self._line(f"{numbers}  {rate:,.0f} {self.unit}/s  ETA {left}")
            self.printed, self.next_line = now, self.done + self.total / LINES

    def _line(self, text: str) -> None:
        self.lines += 1
        share = min(self.done / self.total, 1.0)
        print(
            f"{self.label}: {self.done:,}/{self.total:,} {self.unit} ({share:.0%})  {text}", file=sys.stderr, flush=True
        )
