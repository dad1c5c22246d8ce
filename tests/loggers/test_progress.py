"""Progress as a person sees it: at 80 and 200 columns, and without a terminal."""

import logging
import re
import time

import pytest

from rfdetr_train.loggers.progress import Bars, Counter, Progress, make_progress


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def record(loss):
    parts = {"loss_class": 1.25, "loss_box": 0.5, "loss_giou": 0.75}
    return {"loss": loss, **parts, "lr": {"head": 1e-4, "encoder": 2e-5}, "images_per_s": 12.34}


def run(progress, clock, epochs=2, steps=20):
    """A run of two epochs, a second a step, two for each evaluation."""
    with progress:
        for epoch in range(epochs):
            progress.start_epoch(epoch, epochs, steps)
            for step in range(steps):
                clock.now += 1.0
                progress.step(record(loss=10.0 / (step + 1)))
            progress.start_evaluation(4)
            for _ in range(4):
                clock.now += 0.5
                progress.advance_evaluation()
            progress.end_evaluation()
            progress.end_epoch({"AP": 0.123456, "AP50": None, "weights": "ema"})


def drawn_lines(console):
    """What was drawn, line by line, without colours and cursor movements."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_lines_without_a_terminal(caplog):
    clock = Clock()
    with caplog.at_level(logging.INFO):
        run(Progress(40, clock=clock), clock)
    mean = sum(10.0 / (step + 1) for step in range(20)) / 20
    rest = "class 1.250  box 0.5000  giou 0.7500  lr 1.00e-04  12.3 img/s"
    assert caplog.messages[:4] == [
        f"epoch 1/2  step 1/20  loss 10.00  {rest}  ETA 0:00:39",
        f"epoch 1/2  step 10/20  loss 1.000  {rest}  ETA 0:00:30",
        f"epoch 1/2  step 20/20  loss 0.5000  {rest}  ETA 0:00:20",
        f"epoch 1/2 done in 0:00:22  loss {mean:#.4g}  AP 0.1235  AP50 n/a  weights ema",
    ]
    assert len(caplog.messages) == 8
    assert caplog.messages[-1].startswith("epoch 2/2 done in 0:00:22")


def test_lines_every_few_steps_and_from_a_resume(caplog):
    clock = Clock()
    progress = Progress(100, steps_done=57, clock=clock, log_every_steps=4)
    with caplog.at_level(logging.INFO):
        progress.start_epoch(2, 5, num_steps=20, steps_done=17)
        for _ in range(3):
            clock.now += 2.0
            progress.step({"loss": 1.0, "lr": 1e-3})
    # 40 steps remain, at the 2 s of this process
    assert caplog.messages == ["epoch 3/5  step 20/20  loss 1.000  lr 1.00e-03  ETA 0:01:20"]


def test_long_evaluation_says_that_it_lives(caplog):
    clock = Clock()
    progress = Progress(clock=clock)
    with caplog.at_level(logging.INFO):
        progress.start_evaluation(50)
        for _ in range(50):
            clock.now += 1.0
            progress.advance_evaluation()
        progress.end_evaluation()
    assert caplog.messages == ["evaluation 20/50", "evaluation 40/50"]


@pytest.mark.parametrize("bars", [False, True])
def test_an_evaluation_without_an_epoch(console_of, caplog, bars):
    clock = Clock()
    progress = Progress(clock=clock, bars=Bars(console_of(80), clock)) if bars else Progress(clock=clock)
    with caplog.at_level(logging.INFO), progress:
        progress.start_evaluation(1)
        clock.now += 3.0
        progress.advance_evaluation()
        progress.end_evaluation()
        progress.end_epoch({"AP": 0.5})
    assert caplog.messages == ["evaluation done in 0:00:03  AP 0.5000"]


def test_an_epoch_without_an_evaluation(caplog):
    clock = Clock()
    with caplog.at_level(logging.INFO), Progress(1, clock=clock, log_every_steps=10) as progress:
        progress.start_epoch(0, 2, 5)
        progress.step({"loss": 2.0})
        clock.now += 1.0
        progress.end_epoch({})
    assert caplog.messages[-1] == "epoch 1/2 done in 0:00:01  loss 2.000"


def test_a_step_without_numbers_keeps_the_last_ones():
    progress = Progress()
    progress.start_epoch(0, 1, 5)
    progress.step(record(2.0))
    progress.step({})
    assert progress.step_text(with_parts=False) == "loss 2.000  lr 1.00e-04  12.3 img/s"
    progress.step({"loss": None, "lr": {}})
    assert progress.step_text(with_parts=False) == "loss n/a  12.3 img/s"


@pytest.mark.parametrize("width", [80, 200])
def test_bars_fit_the_terminal_and_vanish(console_of, handler_on, width):
    console, clock = console_of(width), Clock()
    handler_on(console)
    run(Progress(40, clock=clock, bars=Bars(console, clock)), clock)
    lines = drawn_lines(console)
    assert max(len(line) for line in lines) <= width
    parts = "  class 1.250  box 0.5000  giou 0.7500" if width == 200 else ""
    assert any(re.fullmatch(r"run +[━╸╺]+ +10/40 ETA 0:00:30", line) for line in lines)
    full_text = rf"epoch 1/2 +[━╸╺]+ +10/20 loss 1\.000{parts}  lr 1\.00e-04  12\.3 img/s"
    assert any(re.fullmatch(full_text, line) for line in lines)
    assert any(re.fullmatch(r"evaluation +[━╸╺]+ +2/4", line) for line in lines)
    epochs = [line for line in lines if line.startswith("INFO    epoch")]
    assert [line[:33] for line in epochs] == ["INFO    epoch 1/2 done in 0:00:22", "INFO    epoch 2/2 done in 0:00:22"]
    assert console.file.getvalue().endswith("\x1b[2K")  # the last act is to erase the bars


def test_log_lines_go_above_the_bars(console_of, handler_on):
    console, clock = console_of(80), Clock()
    handler_on(console)
    with Progress(10, clock=clock, bars=Bars(console, clock)) as progress:
        progress.start_epoch(0, 1, 10)
        logging.getLogger("rfdetr_train.test").warning("in between")
        lines = drawn_lines(console)
    assert lines[-3] == "WARNING in between"
    assert lines[-2].startswith("run ")
    assert lines[-1].startswith("epoch 1/1 ")


def test_drawing_costs_little(console_of):
    """Ten drawings a second at most, however fast the steps."""
    console, clock = console_of(80), Clock()
    with Progress(1000, clock=clock, bars=Bars(console, clock)) as progress:
        progress.start_epoch(0, 1, 1000)
        before = len(console.file.getvalue())
        for _ in range(1000):
            clock.now += 0.001
            progress.step(record(1.0))
        drawings = console.file.getvalue()[before:].count("run ")
    assert 5 <= drawings <= 11


def test_evaluation_alone_has_no_run_bar(console_of):
    console, clock = console_of(80), Clock()
    with Progress(clock=clock, bars=Bars(console, clock)) as progress:
        progress.start_evaluation(2)
        progress.advance_evaluation()
        progress.end_evaluation()
    lines = drawn_lines(console)
    assert any(line.startswith("evaluation ") for line in lines)
    assert not any(line.startswith("run ") for line in lines)


def test_bars_are_taken_away_when_the_run_fails(console_of):
    console = console_of(80)
    progress = Progress(10, bars=Bars(console, time.monotonic))
    progress.start_epoch(0, 1, 10)
    with pytest.raises(RuntimeError), progress:
        raise RuntimeError
    assert console.file.getvalue().endswith("\x1b[2K")
    progress.close()  # again: nothing happens


def test_which_progress(console_of, caplog):
    terminal, pipe = console_of(80), console_of(terminal=False)
    for mode, console, bars in (
        ("auto", terminal, True),
        ("bar", terminal, True),
        ("plain", terminal, False),
        ("auto", pipe, False),
        ("plain", pipe, False),
    ):
        with make_progress(mode, 10, console=console) as progress:
            assert (progress.bars is not None) is bars
    assert not caplog.messages
    assert make_progress("bar", 10, console=pipe).bars is None
    assert "logger.progress=bar" in caplog.text


def test_a_bar_that_vanishes_at_the_end(console_of):
    console = console_of(80)
    with Counter("checking [images]", console) as counter:
        for done in range(1, 5):
            counter.show(done, 4)
    assert re.search(r"checking \[images\] ", console.file.getvalue())
    assert console.file.getvalue().endswith("\x1b[2K")


def test_work_that_fails_leaves_no_bar(console_of):
    console = console_of(80)
    with pytest.raises(ValueError, match="broken"), Counter("checking", console) as counter:  # noqa: PT012
        counter.show(1, 4)
        raise ValueError("broken")
    assert console.file.getvalue().endswith("\x1b[2K")


def test_lines_now_and_then_without_a_terminal(console_of, caplog):
    seconds = iter(range(1000))
    console = console_of(terminal=False)
    with caplog.at_level(logging.INFO), Counter("checking", console, clock=lambda: next(seconds)) as counter:
        for done in range(1, 31):
            counter.show(done, 30 if done < 25 else None)
    assert caplog.messages == ["checking 20/30"]


def test_short_work_says_nothing_in_a_pipe(console_of, caplog):
    with caplog.at_level(logging.INFO), Counter("checking", console_of(terminal=False)) as counter:
        counter.show(1, 1)
    assert not caplog.messages
