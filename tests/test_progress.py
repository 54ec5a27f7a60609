"""Progress lines: few, complete, with time left, and never on stdout."""

import pytest

from smallinit import progress
from smallinit.progress import LINES, Progress, duration


class Clock:
    """A clock that the test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def lines(clock: Clock, capsys: pytest.CaptureFixture[str], steps: int, seconds: float, start: int = 0) -> list[str]:
    """What is printed by `steps` updates of one unit that take `seconds` each."""
    with Progress(steps, "t-1.0-both", "tokens", start) as bar:
        for _ in range(steps - start):
            clock.now += seconds
            bar.update(1, loss=2.5)
    captured = capsys.readouterr()
    assert captured.out == "" and "\r" not in captured.err
    return captured.err.splitlines()


@pytest.mark.parametrize(
    ("seconds", "wanted"), [(75, "1m15s"), (5, "5s"), (59.7, "1m00s"), (3600, "1h00m"), (7384, "2h03m")]
)
def test_durations_are_short_and_round(seconds: float, wanted: str) -> None:
    assert duration(seconds) == wanted


def test_a_line_has_what_is_done_the_rate_and_the_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    shown = lines(clock, capsys, 100, 2.0)
    middle = next(line for line in shown if ": 50/100" in line or ": 51/100" in line)
    assert middle.startswith("t-1.0-both: ") and "(5" in middle and "loss 2.5" in middle and "0 tokens/s" in middle
    assert "ETA 1m" in middle and shown[-1].endswith("done in 3m20s")


@pytest.mark.parametrize(("steps", "seconds"), [(100_000, 0.01), (100_000, 1.0), (50, 600.0), (1000, 16.0)])
def test_long_work_stays_within_its_lines(
    clock: Clock, capsys: pytest.CaptureFixture[str], steps: int, seconds: float
) -> None:
    shown = lines(clock, capsys, steps, seconds)
    assert 10 < len(shown) <= 3 * LINES + 1


def test_slow_work_is_heard_of_every_fifteen_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(lines(clock, capsys, 10_000, 0.1)) > 1000 // 16 - 2  # within the first lines of its budget


def test_work_of_less_than_a_second_is_silent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(clock, capsys, 1000, 0.0005) == []


def test_a_resumed_run_is_timed_from_where_it_continued(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    shown = lines(clock, capsys, 100, 2.0, start=90)
    assert "92/100 tokens (92%)" in shown[0] or "93/100 tokens (93%)" in shown[0]
    assert "0 tokens/s" in shown[0] and "ETA 1" in shown[0]  # half a token a second, not 46


def test_a_failure_is_not_reported_as_done(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MemoryError), Progress(10, "t") as bar:
        clock.now += 20
        bar.update(5)
        raise MemoryError
    assert "done in" not in capsys.readouterr().err
