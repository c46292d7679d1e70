"""Pages of results beside the suites that they were made by: a reading belongs to the numbers of its page."""

from pathlib import Path

import pytest

from mhex.lab.config.suite import packaged_suites, read_suite
from support.suites import numbers_of

DOCS = Path(__file__).parents[3] / "docs"
RESULTS = DOCS / "results"


@pytest.mark.parametrize("name", sorted(packaged_suites()))
def test_a_page_has_the_numbers_and_the_reading_of_its_suite(name: str) -> None:
    suite, page = read_suite(packaged_suites()[name]), (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert f"Fingerprint of the numbers: `{suite.reading_of}`." in page
    assert numbers_of(page) == suite.reading_of
    assert f"\n## Reading\n\n{suite.reading.strip()}\n" in page
    assert page.startswith(f"# {suite.title}\n")


def test_every_page_has_rows_or_a_reason_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import result_pages as made

    pages = {path.stem for path in RESULTS.glob("*.md")} - {"README"}
    assert pages == made.with_rows() | set(made.WITHOUT_ROWS)
    assert not made.with_rows() & set(made.WITHOUT_ROWS)
    assert sum(path.stat().st_size for path in made.ROWS.rglob("*")) <= made.MOST_BYTES


def test_pages_of_small_rows_are_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import result_pages as made

    assert made.page_of("mhex-accuracy") == (RESULTS / "mhex-accuracy.md").read_text(encoding="utf-8")
