"""Movie Reviews: texts, labels and the words that people marked."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mhex.lab.datasets import DataFormatError, load_movies


@pytest.fixture
def reviews(folder):
    """Write `movies.parquet` with reviews and their spans."""

    def write(evidence):
        rows = {
            "text": ["a good film , \n really good", "  bad "],
            "label": [1, 0],
            "evidence": evidence,
            "split": ["test", "train"],
        }
        pq.write_table(pa.table(rows), folder / "movies.parquet")

    return write


def test_spans_count_words_between_white_space(reviews):
    reviews([[[4, 6], [1, 2], [3, 3]], []])
    test = load_movies("test")
    assert test.texts == ("a good film , really good",)
    assert test.rationales == (((1, 2), (4, 6)),)
    words = test.texts[0].split()
    assert [" ".join(words[a:b]) for a, b in test.rationales[0]] == ["good", "really good"]
    assert (test.labels.tolist(), test.classes) == ([1], ("negative", "positive"))
    assert load_movies("train").rationales == ((),)


def test_spans_outside_the_review_are_refused(reviews):
    reviews([[[4, 7]], []])
    with pytest.raises(DataFormatError, match=r"6 words.*\(4, 7\)"):
        load_movies("test")
