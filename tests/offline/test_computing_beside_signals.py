"""A computation and the signals of its process: heard beside it, and ending it."""

import signal
import threading
import time

import pytest

from lmperf.cli.stopping import heard_once
from loadgen.signals import beside


def test_what_is_computed_is_returned_or_raised():
    assert beside(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        beside(lambda: 1 // 0)


def test_a_signal_ends_the_computation_and_raises_only_outside_of_it(capfd):
    """KeyboardInterrupt inside it could be raised in the middle of a multiplication, which the compiled core takes for a lack
    of memory."""
    heard, ended = [], []

    def compute():
        heard.append(threading.current_thread() is threading.main_thread())
        number = 3**20_000
        signal.raise_signal(signal.SIGINT)
        try:
            while True:
                number * number
        except BaseException as error:
            ended.append(type(error))
            raise

    with pytest.raises(KeyboardInterrupt), heard_once("heard"):
        beside(compute)
    assert heard == [False]
    assert ended == [SystemExit]
    assert capfd.readouterr().err == "\nheard\n"
    assert not [each for each in threading.enumerate() if each.name == "computing"]


def test_a_signal_while_it_starts_leaves_nothing_running(monkeypatch):
    ran = []

    def on_signal(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_signal)
    start = threading.Thread.start

    def start_and_signal(thread):
        signal.raise_signal(signal.SIGTERM)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_and_signal)
    try:
        with pytest.raises(KeyboardInterrupt):
            beside(lambda: [ran.append(time.sleep(0.01)) for _ in range(100_000)])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(ran) < 100_000
    assert not [each for each in threading.enumerate() if each.name == "computing"]


def test_another_thread_computes_by_itself():
    """Only the main thread hears signals."""
    threads = []
    thread = threading.Thread(target=lambda: beside(lambda: threads.append(threading.current_thread())))
    thread.start()
    thread.join()
    assert threads == [thread]
