"""Hooks of mkdocs: one site from docs/ and other files, with links that are right in the repository, too.

README.md is the first page; RESULTS.md, CHANGELOG.md and others are pages as well. A file of the source tree
that a page links to becomes a page with its text. The page of the command line gets the help of every verb.
A page that loads anything from elsewhere fails the build.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# file of the repository -> page of the site
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "results.md",
}
# A link (text, file, anchor), or code, in which nothing is a link.
LINK_OR_CODE = re.compile(
    r"^```.*?^```|\[([^\]\[]*)\]\(([^)#\s]*)(#[^)\s]*)?\)|`[^`\n]+`", re.MULTILINE | re.DOTALL
)
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from other folders, then a page for each file of the source tree that is linked to."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    linked = set()
    for file in files.documentation_pages():
        folder = posixpath.dirname(repository_path(file.src_uri))
        linked |= {
            posixpath.normpath(posixpath.join(folder, target)) for target in targets(file.content_string)
        }
    for path in sorted(linked):
        if is_source(path):
            files.append(File.generated(config, source_page(path), content=source_text(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages, and add the help of the verbs."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    if page.file.src_uri == "cli.md":
        markdown += help_of_all_verbs()
    return relink(markdown, page.file.src_uri)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Fail the build if the page loads anything from elsewhere."""
    if found := loaded_from_elsewhere(output):
        raise PluginError(f"{page.file.dest_uri} loads from elsewhere: {', '.join(found)}")
    return output


def repository_path(page: str) -> str:
    """Where the text of a page is in the repository."""
    return next((path for path, name in PAGES.items() if name == page), f"docs/{page}")


def relink(markdown: str, page: str) -> str:
    """The text of `page` with the links to files of the repository turned into links to pages."""
    folder = posixpath.dirname(repository_path(page))

    def turned(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        if not target or "://" in target:
            return found[0]  # code, a link within the page, a link to another site
        path = posixpath.normpath(posixpath.join(folder, target))
        to = PAGES.get(path) or (source_page(path) if is_source(path) else path.removeprefix("docs/"))
        if text.endswith(".md") and posixpath.basename(text) == posixpath.basename(path):
            text = title(path)  # a file's name says little on a site
        return f"[{text}]({posixpath.relpath(to, posixpath.dirname(page) or '.')}{anchor or ''})"

    return LINK_OR_CODE.sub(turned, markdown)


def title(path: str) -> str:
    """The first heading of a page, or its path where there is none."""
    if not (ROOT / path).exists():
        return path  # the build names it
    found = re.search(r"^# (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else path


def targets(markdown: str) -> set[str]:
    """Files that a page links to."""
    found = (link[2] for link in LINK_OR_CODE.finditer(markdown))
    return {target for target in found if target and "://" not in target}


def is_source(path: str) -> bool:
    """Whether a path of the repository is a file that has no page or picture on the site otherwise."""
    return path not in PAGES and not path.startswith(("docs/", "../")) and (ROOT / path).is_file()


def source_page(path: str) -> str:
    """The page that shows a file of the source tree."""
    return f"source/{path}.md"


def source_text(path: str) -> str:
    """A page with the text of a file, left out of the search."""
    text = (ROOT / path).read_text(encoding="utf-8")
    language = LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n`````{language}\n{text}\n`````\n"


def help_of_all_verbs() -> str:
    """What `hotloop VERB --help` prints, a section for each verb and for each workload of `hotloop train`."""
    from hotloop.cli.main import VERBS, usage
    from hotloop.workflows.train import WORKLOADS

    sections = ["\n\n## All verbs\n", fenced(usage())]
    for verb in VERBS:
        sections += [f"\n## hotloop {verb}\n", fenced(help_text(verb))]
        if verb == "train":
            for workload in WORKLOADS:
                sections += [f"\n### hotloop train {workload}\n", fenced(help_text(verb, workload))]
    return "\n".join(sections)


def help_text(*words: str) -> str:
    """What `hotloop WORDS --help` prints, 80 columns wide."""
    from hotloop.cli.main import main

    printed = io.StringIO()
    wide = mock.patch.dict(os.environ, COLUMNS="80")
    with wide, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue()


def fenced(text: str) -> str:
    """A block of text without runs of empty lines."""
    lines = re.sub("\n{3,}", "\n\n", text).strip()
    return f"```text\n{lines}\n```"


class _Loads(HTMLParser):
    """Collects the addresses that a browser requests for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        rel = given.get("rel", "").split()
        if tag == "link" and {"canonical", "next", "prev", "alternate"}.isdisjoint(rel):
            self.found.append(given.get("href", ""))
        self.found += [given[name] for name in ("src", "srcset", "poster", "data", "action") if name in given]
        self.found += re.findall(r"url\(([^)]*)\)", given.get("style", ""))


def loaded_from_elsewhere(html: str) -> list[str]:
    """Addresses elsewhere from which a page loads scripts, styles, pictures or others; not its links."""
    parser = _Loads()
    for tag in re.findall(r"<[a-zA-Z][^>]*//[^>]*>", html):  # parsing whole pages takes a second
        parser.feed(tag)
    inline = "".join(re.findall(r"<style[^>]*>(.*?)</style>", html, re.DOTALL))
    found = parser.found + [a or b for a, b in re.findall(r"url\(([^)]*)\)|@import\s+([^;]+);", inline)]
    return [
        address for address in found if re.match(r"[\s\"']*(?:[a-z][a-z+.-]*:)?//", address, re.IGNORECASE)
    ]
