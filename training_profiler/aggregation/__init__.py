"""Statistics: pure arithmetic from raw events to sums in bounded memory."""
