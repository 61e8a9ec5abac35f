"""Statistics of series and samples, for runs, comparisons, trials, traces and ranks: pure functions on numpy."""
