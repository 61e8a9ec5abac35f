"""The views of an analysed trace as text."""
