"""Errors, units, texts fit for a terminal, and the switch. Never: import more than it must: every disabled program
pays for it.
"""
