"""Errors, units, texts fit for a terminal, the switch; one table a fact: sections, accelerators and their peaks,
trackers, functions of libraries. Never: import more than it must: every disabled program pays for it.
"""
