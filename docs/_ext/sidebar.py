"""The sidebar, from the tables of pages that readers see.

A table below the comment `<!-- pages -->` lists pages in its first column: they become children of
the page that has the table. `<!-- pages: Guides -->` gives them a caption in the sidebar. So a new
page needs one row in one table, and a page that stands in none is a warning of Sphinx.

Other comments, such as those that the tests of code blocks read, are left out of the site. Links
that show a page's file name, as is good on GitHub, show its title.
"""

import posixpath
import re

PAGES = re.compile(r"^<!-- pages(?:: (?P<caption>.*?))? -->\n+(?P<table>(?:\|.*\n)+)", re.MULTILINE)
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"\[[\w/.-]+\.md\](?=\([^)\s]+\.md(?:#[^)\s]*)?\))")
LINK = re.compile(r"\]\((?P<page>[^)#]+)\.md(?:#[^)]*)?\)")


def toctrees(text: str) -> str:
    """The tables of a page as directives that show nothing where they stand."""
    trees = []
    for found in PAGES.finditer(text):
        cells = (row.split("|")[1] for row in found["table"].splitlines())
        pages = [link["page"] for cell in cells for link in LINK.finditer(cell)]
        caption = f":caption: {found['caption']}\n" if found["caption"] else ""
        # A link without a folder is beside this page; in a toctree a leading ./ says nothing else.
        entries = "\n".join(posixpath.normpath(page) for page in pages)
        trees.append(f"```{{toctree}}\n:hidden:\n{caption}\n{entries}\n```\n")
    return "\n".join(trees)


def read(app, docname, source):
    text = source[0]
    source[0] = f"{FILE_NAME.sub('[]', COMMENT.sub('', text))}\n\n{toctrees(text)}"


def setup(app):
    app.connect("source-read", read, priority=900)  # behind those that read the comments
    return {"parallel_read_safe": True}
