"""Configuration of the documentation site: `make docs` builds it offline into docs/_build/html."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from fco_cli import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "fco"
author = "the developers of fco"
copyright = "2026, the developers of fco; Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # formulas without a network
    "reference_pages",  # docs/_ext
    "repository_links",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
templates_path = ["_templates"]
exclude_patterns = ["_build", "notebooks", "gallery", "sg_execution_times.rst"]
nitpicky = False
default_role = "code"  # `name` in a docstring
highlight_language = "text"  # of blocks without a language: commands and pseudocode

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "config.cache"]

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# References to other projects need their inventories, which an offline build does not have.
intersphinx_mapping = (
    {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "scipy": ("https://docs.scipy.org/doc/scipy", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
        "pandas": ("https://pandas.pydata.org/docs", None),
        "matplotlib": ("https://matplotlib.org/stable", None),
    }
    if os.environ.get("FCO_DOCS_ONLINE")
    else {}
)

# Scripts whose extra is not installed are shown without a picture; `make docs` installs all but PyTorch.
NEEDS = {"torch": "torch", "sites": "nvflare"}
MISSING = [name for name, module in NEEDS.items() if find_spec(module) is None]

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": rf"/plot_(?!\d+_({'|'.join(MISSING)})\.py)" if MISSING else r"/plot_",
    "remove_config_comments": True,
    "show_memory": False,
    "download_all_examples": False,
    "capture_repr": (),
    "image_scrapers": ("matplotlib", "gallery_figures.scrape_figures"),  # docs/_ext
    "abort_on_example_error": True,
    "within_subsection_order": "FileNameSortKey",
}

html_theme = "pydata_sphinx_theme"
html_title = f"fco {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}  # light or dark, as the browser is set
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
