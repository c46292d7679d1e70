"""Pages of results beside the suites that they were made by: a reading belongs to the numbers of its page."""

from pathlib import Path

import pytest

from mhex.lab.config.suite import packaged_suites, read_suite
from support.suites import numbers_of

RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.mark.parametrize("name", sorted(packaged_suites()))
def test_a_page_has_the_numbers_and_the_reading_of_its_suite(name: str) -> None:
    suite, page = read_suite(packaged_suites()[name]), (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert f"Fingerprint of the numbers: `{suite.reading_of}`." in page
    assert numbers_of(page) == suite.reading_of
    assert f"\n## Reading\n\n{suite.reading.strip()}\n" in page
    assert page.startswith(f"# {suite.title}\n")
