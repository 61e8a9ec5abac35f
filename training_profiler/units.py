"""Every conversion factor of the project."""

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000
S_PER_HOUR = 3600
