"""Sphinx configuration. `make docs` builds the site into build/docs; it needs neither the network nor torch."""

project = "training_profiler"
author = "The training_profiler developers"
project_copyright = author

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_samples"]
nitpicky = True  # an unresolved reference is a warning, and `make docs` turns warnings into errors
highlight_language = "text"

myst_heading_anchors = 4  # headings get the anchors that GitHub gives them
myst_enable_extensions = ["dollarmath"]

html_theme = "furo"
html_title = "training_profiler"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "github-dark"
