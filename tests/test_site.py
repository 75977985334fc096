"""What makes one site of docs/ and the files around it. `make lint` builds the site, in strict mode."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import hotloop

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def pages() -> Any:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs/site/pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "link", "turned"),
    [
        ("index.md", "[how](docs/boost.md#what-is-compiled)", "[how](boost.md#what-is-compiled)"),
        ("index.md", "![a picture](docs/images/report.png)", "![a picture](images/report.png)"),
        ("index.md", "[figures](benchmarks/RESULTS.md)", "[figures](results.md)"),
        ("index.md", "[LICENSE](LICENSE)", "[LICENSE](source/LICENSE.md)"),
        ("results.md", "[here](../docs/boost.md)", "[here](boost.md)"),
        ("run.md", "[figures](../benchmarks/RESULTS.md#clusters)", "[figures](results.md#clusters)"),
        ("run.md", "[tune.md](tune.md)", "[Settings for your machine](tune.md)"),
        ("guides/jax.md", "[run.md](../run.md)", "[Any script, unmodified](../run.md)"),
        ("guides/jax.md", "[file](../../setup.py)", "[file](../source/setup.py.md)"),
        (
            "run.md",
            "[below](#limits) [Ray](https://docs.ray.io)",
            "[below](#limits) [Ray](https://docs.ray.io)",
        ),
        ("run.md", "[`setup.py`](../setup.py)", "[`setup.py`](source/setup.py.md)"),
        ("run.md", "`[x](../setup.py)`", "`[x](../setup.py)`"),
        ("run.md", "```\n[x](../setup.py)\n```", "```\n[x](../setup.py)\n```"),
        ("run.md", "[lost](../no/such.py)", "[lost](no/such.py)"),  # mkdocs says that it leads nowhere
    ],
)
def test_a_link_of_the_repository_becomes_a_link_of_the_site(
    pages: Any, page: str, link: str, turned: str
) -> None:
    assert pages.relink(link, page) == turned


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example.com/a.js"></script>',
        "<script src=//cdn.example.com/a.js></script>",
        '<link rel="stylesheet" href="https://fonts.example.com/css">',
        '<link rel="preconnect" href="https://fonts.example.com">',
        '<img src="http://example.com/a.png" alt="">',
        '<img srcset="https://example.com/a.png 2x" alt="">',
        '<iframe src="https://example.com"></iframe>',
        '<div style="background: url(https://example.com/a.png)"></div>',
        "<style>@import 'https://example.com/a.css';</style>",
        '<style>a { background: url("//example.com/a.png") }</style>',
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(pages: Any, html: str) -> None:
    assert pages.loaded_from_elsewhere(html)


def test_own_files_and_links_are_no_loads(pages: Any) -> None:
    html = (
        '<link rel="canonical" href="https://example.com/"><a href="https://example.com">x</a><img src="a">'
        '<link rel="stylesheet" href="assets/a.css"><script>var x = "https://example.com"</script>'
    )
    assert pages.loaded_from_elsewhere(html) == []


def test_the_api_page_has_every_public_name() -> None:
    page = (ROOT / "docs/api.md").read_text()
    named = set(re.findall(r"hotloop\.(\w+)", page))
    assert set(hotloop.__all__) - {"__version__"} <= named


def test_the_command_line_page_has_every_verb(pages: Any) -> None:
    from hotloop.cli.main import VERBS

    table = (ROOT / "docs/cli.md").read_text().split("Common to all verbs")[0]
    assert set(VERBS) - {"completion"} <= set(re.findall(r"`(\w+)`", table))
    assert "usage: hotloop show" in pages.help_text("show")
