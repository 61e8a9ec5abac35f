"""Lets ``python -m training_profiler`` do what ``training-profiler`` does."""

import sys

from training_profiler.cli import main

sys.exit(main())
