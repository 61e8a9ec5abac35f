import gc
import threading

from training_profiler.sampling.garbage_collector import GarbageTimer


def test_pauses_of_the_training_thread_are_counted():
    before = list(gc.callbacks)
    timer = GarbageTimer()
    timer.start()
    timer.start()
    gc.collect()
    assert timer.count == 0  # no thread trains yet
    timer.sample_this_thread()
    gc.collect()
    assert timer.count == 1
    assert timer.seconds > 0
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert timer.count == 1
    timer.close()
    assert gc.callbacks == before
