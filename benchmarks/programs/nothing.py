"""A program that does nothing; ``start_up`` reads its CPU time and lets it end."""

import sys
from time import process_time

print(process_time() * 1e3, flush=True)
sys.stdin.read()
