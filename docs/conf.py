"""The site of Octofold's documentation: `make docs` builds it from the pages as they stand.

The source folder is the repository's root, so that links to files work on GitHub and in the site
alike. docs/_ext has what is special: the sidebar, the C++ reference, docstrings, the gallery.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

project = "Octofold"
author = "The authors of Octofold"
version = release = re.search(
    r"project\(octofold VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()
)[1]

root_doc = "docs/index"
include_patterns = ["docs/**", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = ["docs/_ext", "docs/_static", ".*", "build", "dist", "out", "octofold-*"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sidebar",
    "docstrings",
    "cpp_reference",
    "gallery",
    "evidence",
]

# Headings have the anchors that GitHub gives them. A link to a page, a file or a heading that is
# not there is a warning, and `make docs` takes warnings for errors.
myst_heading_anchors = 4
myst_links_external_new_tab = False
# Pages of the reference begin with deeper headings; fields of several classes have one name.
suppress_warnings = ["myst.header", "ref.python"]
nitpicky = True
# Names of other libraries, whose references are not at hand, and private words of ours.
nitpick_ignore_regex = [("py:.*", ".*"), ("cpp:identifier", "std.*|.*detail.*")]

autodoc_default_options = {
    "members": True,
    "imported-members": True,  # of __all__
    "member-order": "groupwise",
}
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
cpp_maximum_signature_line_length = 88
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"Octofold {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]  # index.html, which leads to docs/index.html
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

linkcheck_timeout = 20
linkcheck_retries = 2
