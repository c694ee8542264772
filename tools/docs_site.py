"""The documentation as a site: `make docs` builds it into site/, and `make lint` checks every link.

The pages are the Markdown files of the repository, which are also readable on GitHub. The order of
the navigation is that of docs/README.md. Other files that they link to become pages, too.

    python -m tools.docs_site --check              check the links and anchors of the pages
    python -m tools.docs_site --zensical PROGRAM   build the site, and check the links of its HTML
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SITE = ROOT / "site"
_SOURCE = ROOT / ".cache" / "docs"
_INDEX = ROOT / "docs" / "README.md"
_PAGES = (
    *("README.md", "docs/**/*.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("batch_emulator/README.md", "images/README.md", "custom_image/README.md"),
    *("requirements/README.md", "examples/**/*.md"),
)
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ ]*$\n?", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_DEFINITION = re.compile(r"^\[[^\]]+\]: (\S+)$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_LIST = re.compile(r"^(?![ \t]*(?:[-*+]|\d+\.) )(\S.*)\n(?=(?:[-*+]|\d+\.) )", re.MULTILINE)

# The title of a section of docs/README.md, for pages in a folder that the page does not list.
_SECTIONS = {
    "docs/guides": "Guides",
    "docs/decisions": "Decisions",
    "docs/subsystems": "Contribute",
}
_REST = "Reference"

Navigation = dict[str, list[tuple[str, Path]]]


def pages() -> list[Path]:
    """Return every page, the start page first."""
    found = [path for pattern in _PAGES for path in sorted(ROOT.glob(pattern))]
    return list(dict.fromkeys(found))


def title(page: Path) -> str:
    """Return the first heading of a page."""
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].replace("`", "") if found else page.stem


def navigation() -> Navigation:
    """Return every page with its title, by section: those of docs/README.md, then the others."""
    sections: Navigation = {"Start": [("Overview", ROOT / "README.md"), ("Documentation", _INDEX)]}
    for part in _INDEX.read_text(encoding="utf-8").split("\n## ")[1:]:
        name, _, rows = part.partition("\n")
        for text, link in re.findall(r"^\| \[([^\]]+)\]\(([^)#]+)\)", rows, re.MULTILINE):
            target = (_INDEX.parent / link).resolve()
            if not target.is_dir():
                sections.setdefault(name, []).append((text, target))
    known = {page for listed in sections.values() for _, page in listed}
    for page in pages():
        if page not in known:
            folder = page.parent.relative_to(ROOT).as_posix()
            sections.setdefault(_SECTIONS.get(folder, _REST), []).append((title(page), page))
    return sections


def without_code(text: str) -> str:
    """Return a page without its blocks and spans of code."""
    return _CODE.sub("", _FENCE.sub("", text))


def headings(text: str) -> list[str]:
    """Return the titles of the headings of a page in order."""
    return _HEADING.findall(_FENCE.sub("", text))


def anchors(text: str) -> list[str]:
    """Return the anchors of the headings of a page in order, as GitHub makes them."""
    found: Counter[str] = Counter()
    names: list[str] = []
    for heading in headings(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        names.append(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def links(text: str) -> Iterator[str]:
    """Yield the targets of the links and pictures of a page that are not addresses of the web."""
    plain = without_code(text)
    for target in (*(found[1] for found in _LINK.findall(plain)), *_DEFINITION.findall(plain)):
        if not re.match(r"[a-z]+:", target):
            yield target


def dead_links(page: Path, text: str) -> Iterator[str]:
    """Yield the links of a page to a file, a folder or a heading that does not exist."""
    for link in links(text):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or not target.is_relative_to(ROOT):
            yield f"{page.relative_to(ROOT)}: {link}: no such file"
        elif anchor and target.suffix == ".md":
            own = text if target == page else target.read_text(encoding="utf-8")
            if anchor not in anchors(own):
                yield f"{page.relative_to(ROOT)}: {link}: no such heading"


def check_pages() -> list[str]:
    """Return the dead links of all pages, and those to pages and folders outside of the site."""
    known = pages()
    shown = {*known, *(page.parent for page in known)}
    dead: list[str] = []
    for page in known:
        text = page.read_text("utf-8")
        dead += dead_links(page, text)
        for link in links(text):
            target = (page.parent / link.partition("#")[0]).resolve()
            is_page = target.is_dir() or (target.suffix == ".md" and target.exists())
            if is_page and target.is_relative_to(ROOT) and target not in shown:
                dead.append(f"{page.relative_to(ROOT)}: {link}: not in the site, see _PAGES")
    return dead


class Source:
    """The folder of Markdown files from which the site is built: a copy of the pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shown: set[Path] = set()

    def write(self) -> None:
        """Write all pages, and the files that they link to."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for page in pages():
            self._put(page.relative_to(ROOT), self._converted(page))
        for folder in {page.parent for page in pages()}:
            if not (folder / "README.md").exists():
                listed = [f"- [{title(page)}]({page.name})" for page in sorted(folder.glob("*.md"))]
                text = f"# {folder.name.capitalize()}\n\n" + "\n".join(listed) + "\n"
                self._put(folder.relative_to(ROOT) / "README.md", text)

    def _put(self, name: Path, text: str) -> None:
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def _converted(self, page: Path) -> str:
        """Return the text of a page for the generator of the site."""

        def link(found: re.Match[str]) -> str:
            return found[1] + self._target(page, found[2]) + found[3]

        def heading(found: re.Match[str]) -> str:
            # The search of the site takes <n> in a title for HTML.
            shown = found[0].replace("<", "‹").replace(">", "›")  # noqa: RUF001
            return f"{shown} {{#{next(names)}}}"

        def prose(part: str) -> str:
            part = _outside(_CODE, part, lambda words: _LINK.sub(link, words))
            # Python-Markdown needs an empty line before a list, and has other anchors than GitHub.
            part = _LIST.sub(r"\1\n\n", part)
            return _HEADING.sub(heading, part)

        text = page.read_text(encoding="utf-8")
        names = iter(anchors(text))
        text = _DEFINITION.sub(lambda m: m[0].replace(m[1], self._target(page, m[1])), text)
        return _outside(_FENCE, text, prose)

    def _target(self, page: Path, link: str) -> str:
        """Return the target of a link in the site. Copy or show the file that it names."""
        name, _, anchor = link.partition("#")
        if not name or re.match(r"[a-z]+:", link):
            return link
        target = (page.parent / name).resolve()
        inside = target.relative_to(ROOT)
        if target.is_dir():
            inside = inside / "README.md"
        elif target.suffix in {".svg", ".png", ".ipynb"}:
            (self.folder / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, self.folder / inside)
        elif target.suffix != ".md":
            inside = self._show(target)
        start = (self.folder / page.relative_to(ROOT)).parent
        relative = Path(os.path.relpath(self.folder / inside, start)).as_posix()
        return f"{relative}#{anchor}" if anchor else relative

    def _show(self, file: Path) -> Path:
        """Write a page that shows a file. Return its name."""
        inside = file.relative_to(ROOT)
        name = Path("source", *(part.lstrip(".") for part in inside.parts))
        name = name.with_name(f"{name.name}.md")
        if file not in self._shown:
            self._shown.add(file)
            kind = {".py": "python", ".yml": "yaml"}.get(file.suffix, "text")
            text = file.read_text(encoding="utf-8")
            self._put(name, f"# `{inside.as_posix()}`\n\n````{kind}\n{text}````\n")
        return name


def _outside(pattern: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Return the text with a change of the parts that the pattern does not match."""
    parts: list[str] = []
    end = 0
    for found in pattern.finditer(text):
        parts += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join((*parts, change(text[end:])))


def configuration() -> str:
    """Return the configuration of the generator, in JSON, which is also YAML."""
    nav = [
        {name: [{text: page.relative_to(ROOT).as_posix()} for text, page in listed]}
        for name, listed in navigation().items()
    ]
    extensions: list[object] = [
        *("attr_list", "md_in_html", "pymdownx.superfences", "sane_lists", "tables"),
        {"pymdownx.highlight": {"anchor_linenums": True}},
        {"toc": {"permalink": True}},
    ]
    return json.dumps(
        {
            "site_name": "runner",
            "docs_dir": "pages",
            "site_dir": "site",
            "use_directory_urls": True,
            "theme": _THEME,
            "plugins": ["search"],
            "markdown_extensions": extensions,
            "extra": {"generator": False},
            "extra_css": ["style.css"],
            "nav": nav,
        },
        indent=2,
    )


_THEME = {
    "name": "material",
    "font": False,
    "features": [
        *("navigation.sections", "navigation.top", "navigation.footer", "search.highlight"),
        *("content.code.copy", "toc.follow"),
    ],
    "palette": [
        {
            "media": "(prefers-color-scheme: light)",
            "scheme": "default",
            "toggle": {"icon": "lucide/sun", "name": "Switch to dark mode"},
        },
        {
            "media": "(prefers-color-scheme: dark)",
            "scheme": "slate",
            "toggle": {"icon": "lucide/moon", "name": "Switch to light mode"},
        },
    ],
}


# Columns as wide as their words. On a phone, tables scroll and cells keep a readable width.
_STYLE = """\
.md-typeset table:not([class]) th { min-width: 0; }
.md-typeset table:not([class]) td code { word-break: normal; }
@media (max-width: 60em) {
  .md-typeset table:not([class]) td:not(:first-child) { min-width: 13rem; }
}
"""


class _Page(HTMLParser):
    """The links and the anchors of a page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember `id`, `href` and `src`."""
        for name, value in attrs:
            if name in {"id", "name"} and value:
                self.anchors.add(value)
            elif name in {"href", "src"} and value and tag != "link":
                self.targets.append(value)


def check_site(site: Path) -> list[str]:
    """Return the links of the built pages whose target is not in the site."""
    built = {
        path.resolve(): _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))
    }
    dead: list[str] = []
    for path, page in built.items():
        if path.name == "404.html":
            continue
        for link in page.targets:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            known = built[target].anchors if target in built else {anchor}
            if not target.exists() or (anchor and anchor not in known):
                dead.append(f"{path.relative_to(site)}: {link}")
    return dead


def build(zensical: str) -> list[str]:
    """Build the site. Return its dead links."""
    Source(_SOURCE / "pages").write()
    (_SOURCE / "pages" / "style.css").write_text(_STYLE, encoding="utf-8")
    file = _SOURCE / "mkdocs.yml"
    file.write_text(configuration(), encoding="utf-8")
    subprocess.run([zensical, "build", "--clean", "--config-file", str(file)], check=True)
    shutil.rmtree(SITE, ignore_errors=True)
    (_SOURCE / "site").rename(SITE)
    return check_site(SITE)


def main() -> int:
    """Check the pages, or build the site. Return 1 if there are dead links."""
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="check the links of the pages")
    what.add_argument("--zensical", metavar="PROGRAM", help="build the site with this program")
    arguments = parser.parse_args()
    dead = check_pages() if arguments.check else build(arguments.zensical)
    for line in dead:
        print(f"dead link in {line}", file=sys.stderr)
    if not dead and not arguments.check:
        print("built site/; to read it: python3 -m http.server --bind 127.0.0.1 --directory site")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
