"""One table a fact: sections, accelerators and their peaks, trackers, functions of libraries. Never: import."""
