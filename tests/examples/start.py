"""Runs the module of the first argument with the others, as ``python -m`` does."""

import runpy
import sys

runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
