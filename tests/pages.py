"""The pages of the public modules, built by pdoc; a warning is an error, and so is a name that is on no page.

pip install -e ".[docs]" && python -m tests.pages .site
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from tests.public_modules import documented, module_of, public_modules

GENERATED = r"Error parsing type annotation .* for functrain\.(.*\.__init__|testing\.\w+)\. "
"""What NamedTuple and ``st.composite`` generate is of no module in which pdoc could look its annotations up."""


def build(folder: Path) -> None:
    """Write a page for each public module."""
    import pdoc
    import pdoc.render

    pdoc.render.configure(docformat="google")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", GENERATED, UserWarning)
        pdoc.pdoc(*wanted(), output_directory=folder)


def wanted() -> list[str]:
    """Return what pdoc is to document: a package would bring modules that have the name of a function in it."""
    packages = [name for name in public_modules() if name.count(".") < 2]
    return [*packages, r"!functrain\..*\.", *(name for name in public_modules() if name not in packages)]


def missing(folder: Path) -> list[str]:
    """Return the public names that are not on the page of their module."""
    pages = {name: (folder / f"{name.replace('.', '/')}.html").read_text(encoding="utf-8") for name in public_modules()}
    names = [(package, name) for package in pages for name in documented(module_of(package))]
    found = [(f"{package}.{name}", f'id="{name}"' in pages[package]) for package, name in names]
    return [name for name, there in found if not there and name not in pages]


def main() -> int:
    """Build the pages into the folder that is named, and say what they lack."""
    folder = Path(sys.argv[1])
    build(folder)
    lacking = missing(folder)
    sys.stdout.write(f"{len(public_modules())} pages in {folder}, names that are on none: {lacking or 'none'}\n")
    return int(bool(lacking))


if __name__ == "__main__":
    raise SystemExit(main())
