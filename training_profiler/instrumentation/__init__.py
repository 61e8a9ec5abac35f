"""How events come from code that nobody edited: one file a seam, and what a training's steps follow from."""
