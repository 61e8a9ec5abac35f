"""A launcher that has imported torch starts this program again as a child process, and that one trains."""

import subprocess
import sys

from _tiny import truth
from _train import train

if sys.argv[1:] == ["train"]:
    truth(train())
else:
    sys.exit(subprocess.call([sys.executable, __file__, "train"]))
