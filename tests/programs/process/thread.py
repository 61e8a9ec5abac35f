"""The training runs in a thread while the main thread waits."""

import threading

from _tiny import truth
from _train import train

done = []
thread = threading.Thread(target=lambda: done.append(train()))
thread.start()
thread.join()
truth(done[0])
