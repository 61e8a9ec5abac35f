"""The HTML page of a run or of traces: tables, charts and their data; ``vendor/`` has the charting library and its
licence. Never: load anything from a network, leave a text unescaped.
"""
