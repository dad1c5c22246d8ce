import importlib
import sys
import time

import pytest


@pytest.fixture
def script():
    return importlib.import_module("bench_startup")


def test_it_waits_for_the_sign_and_no_longer(script):
    started = time.perf_counter()
    waits = "import time; time.sleep(0.2); print('loss 1', flush=True); time.sleep(60)"
    assert 0.2 < script.wait([sys.executable, "-c", waits], "loss ") < 30
    assert time.perf_counter() - started < 30


def test_a_command_that_fails_is_no_measurement(script):
    with pytest.raises(SystemExit, match="no such thing"):
        script.wait([sys.executable, "-c", "raise SystemExit('no such thing')"], None)
    with pytest.raises(SystemExit, match="done"):
        script.wait([sys.executable, "-c", "print('done')"], "loss ")
