import signal
import threading

from training_profiler.torch_capture.main_thread_signal import MainThreadInterrupt

LAST = int(signal.SIGRTMAX)


def test_ring_runs_the_work_on_the_main_thread():
    threads = []
    wake = MainThreadInterrupt(lambda: threads.append(threading.current_thread()))
    wake.arm()
    thread = threading.Thread(target=wake.ring)
    thread.start()
    thread.join()
    wake.disarm()
    assert threads == [threading.main_thread()]


def test_handled_signal_is_skipped_and_ours_is_released():
    signal.signal(LAST, signal.SIG_IGN)
    try:
        wake = MainThreadInterrupt(lambda: None)
        wake.arm()
        assert signal.getsignal(LAST) == signal.SIG_IGN
        assert signal.getsignal(LAST - 1) not in (signal.SIG_DFL, signal.SIG_IGN)
        wake.disarm()
        assert signal.getsignal(LAST - 1) == signal.SIG_DFL
    finally:
        signal.signal(LAST, signal.SIG_DFL)


def test_ring_without_arm_does_nothing():
    wake = MainThreadInterrupt(lambda: None)
    wake.ring()
    wake.arm()
    wake.disarm()
    wake.ring()
