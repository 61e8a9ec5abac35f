"""From events to totals: which section owns each moment, steps, loaders, trends. Never: I/O."""
