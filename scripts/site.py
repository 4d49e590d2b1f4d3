"""Builds the pages as a site with search into the folder given, and llms.txt beside them. A dead link fails.

The site has the README as its first page, then the sections of docs/index.md with the pages that each links, in this
order. Links to files that are no pages go to the repository.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
#: The pages that are not in docs, with their names on the site.
OTHERS = {"README": "index.md"} | {name: f"{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
#: The name on the site of docs/index.md.
PAGES = "pages.md"
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Where CI's own repository is; elsewhere an address that leads nowhere.
_REPOSITORY = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}".format_map(
    {"GITHUB_SERVER_URL": "https://repository.invalid", "GITHUB_REPOSITORY": _PROJECT["name"]} | os.environ
)
# A link may be broken over two lines, and the code of a page may look like a link.
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_FENCE = re.compile(r"^(```.*?^```|    .*?$)", re.MULTILINE | re.DOTALL)


def main() -> None:
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        shutil.copytree(DOCS, work / "docs")
        (work / "docs" / "index.md").rename(work / "docs" / PAGES)
        for other, page in OTHERS.items():
            shutil.copy(ROOT / f"{other}.md", work / "docs" / page)
        for path in (work / "docs").rglob("*.md"):
            path.write_text(_linked(path, work / "docs"), encoding="utf-8")
        (work / "zensical.toml").write_text(_settings(), encoding="utf-8")
        command = [str(Path(sys.executable).parent / "zensical"), "build", "--clean", "--strict"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / "site", target)
    (target / "llms.txt").write_text(_for_models(), encoding="utf-8")
    dead = sorted(_dead_links(target))
    if dead:
        raise SystemExit("dead links:\n" + "\n".join(dead))
    pages = len(list(target.rglob("*.html")))
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in (*DOCS.rglob("*.md"), ROOT / "README.md"))
    print(f"{pages} pages in {target}, no dead link; the sources have {words:,} words")


def _linked(path: Path, docs: Path) -> str:
    """Returns a page whose links lead to pages of the site, or else to the repository."""
    name = path.relative_to(docs)
    source = _source(str(name))

    def link(found: re.Match[str]) -> str:
        address, fragment = urldefrag(found[2])
        if not address or urlsplit(address).scheme:
            return found[0]
        to = (source.parent / unquote(address)).resolve()
        if to == DOCS / "index.md":
            where = docs / PAGES
        elif to.is_relative_to(DOCS):
            where = docs / to.relative_to(DOCS)
        elif to.parent == ROOT and to.stem in OTHERS:
            where = docs / OTHERS[to.stem]
        else:
            kind = "tree" if to.is_dir() else "blob"
            return f"{found[1]}{_REPOSITORY}/{kind}/main/{to.relative_to(ROOT)}{found[3]}"
        return f"{found[1]}{os.path.relpath(where, path.parent)}{'#' + fragment if fragment else ''}{found[3]}"

    parts = _FENCE.split(path.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    return "".join(
        part if number % 2 else _HEADING.sub(lambda found: _named(found, seen), _LINK.sub(link, part))
        for number, part in enumerate(parts)
    )


def _named(heading: re.Match[str], seen: Counter[str]) -> str:
    """Gives a heading the name that it has in the repository, to which the links lead."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[2]).lower()
    name = re.sub(r"[^\w\- ]", "", plain.strip()).replace(" ", "-")
    seen[name] += 1
    return f"{heading[0]} {{ #{name}{f'-{seen[name] - 1}' if seen[name] > 1 else ''} }}"


def _source(page: str) -> Path:
    """Returns the file of a page of the site."""
    other = next((name for name, of in OTHERS.items() if of == page), None)
    return ROOT / f"{other}.md" if other else DOCS / ("index.md" if page == PAGES else page)


def _sections() -> dict[str, list[tuple[str, str]]]:
    """Returns the title and the file of each page, in the order of docs/index.md, by section."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    start = [("In five minutes", OTHERS["README"]), ("Tutorial", "tutorial.md"), ("All pages", PAGES)]
    found: dict[str, list[tuple[str, str]]] = {"Quick start": start}
    seen = {"tutorial.md", "index.md"}
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        if body.lstrip().startswith("|"):
            continue
        for _, address, _ in _LINK.findall(body):
            page = urldefrag(address)[0]
            if page.endswith(".md") and page not in seen and (DOCS / page).is_file():
                seen.add(page)
                found.setdefault(heading, []).append((_title(DOCS / page), page))
    left = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - seen
    found["Reference"] += [(_title(DOCS / page), page) for page in sorted(left)]
    found["Why"] += [(other.capitalize(), OTHERS[other]) for other in ("CONTRIBUTING", "SECURITY", "CHANGELOG")]
    return found


def _title(path: Path) -> str:
    first = next(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
    return first.removeprefix("# ").replace("`", "")


def _settings() -> str:
    def entry(name: str, of: str) -> str:
        return f"{{ {json.dumps(name)} = {of} }}"

    nav = ", ".join(
        entry(section, f"[{', '.join(entry(title, json.dumps(page)) for title, page in pages)}]")
        for section, pages in _sections().items()
    )
    return f"""[project]
site_name = "compaction-store"
site_description = {json.dumps(_PROJECT["description"])}
repo_url = {json.dumps(_REPOSITORY)}
use_directory_urls = false
nav = [{nav}]

[project.theme]
features = ["content.code.copy", "navigation.sections", "navigation.top", "navigation.footer", "search.highlight"]
font = false

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"
"""


def _for_models() -> str:
    """Returns llms.txt: each page with its first sentence, and where its Markdown is."""
    lines = [f"# {_PROJECT['name']}", "", f"> {_PROJECT['description']}", ""]
    for section, pages in _sections().items():
        lines += [f"## {section}", ""]
        for title, page in pages:
            source = _source(page)
            where = f"{_REPOSITORY}/raw/main/{source.relative_to(ROOT)}"
            lines.append(f"- [{title}]({where}): {_first_sentence(source)}")
        lines.append("")
    return "\n".join(lines)


def _first_sentence(path: Path) -> str:
    paragraphs = re.split(r"\n\s*\n", path.read_text(encoding="utf-8"))
    first = next(
        part for part in paragraphs if part.strip() and not part.lstrip().startswith(("#", "<", "!", "|", "`"))
    )
    plain = " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first).split())
    return re.split(r"(?<=[.:]) ", plain)[0]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names.update(value for name in ("id", "name") if (value := values.get(name)))
        wanted = {"a": "href", "img": "src", "link": "href", "script": "src"}.get(tag)
        if wanted and (link := values.get(wanted)):
            self.links.append(link)


def _dead_links(site: Path) -> set[str]:
    pages = {}
    for path in site.rglob("*.html"):
        parser = _Links()
        parser.feed(path.read_text(encoding="utf-8"))
        pages[path] = parser
    dead = set()
    for path, page in pages.items():
        for link in page.links:
            address, fragment = urldefrag(link)
            if urlsplit(address).scheme or address.startswith(("//", "data:")):
                continue
            to = (path.parent / unquote(address)).resolve() if address else path
            to = to / "index.html" if to.is_dir() else to
            missing = not to.is_file() or (fragment and to in pages and unquote(fragment) not in pages[to].names)
            if missing and path.name != "404.html":
                dead.add(f"{path.relative_to(site)} -> {link}")
    return dead


if __name__ == "__main__":
    main()
