"""Text, ``report.json`` and the HTML page from a snapshot; ``page/`` has the charting library and its licence. Never:
measure, write, load anything from a network, leave a text unescaped.
"""
