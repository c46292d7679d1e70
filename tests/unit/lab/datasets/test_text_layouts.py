"""AG News and Movie Reviews as they are published."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mhex.errors import ArgumentError
from mhex.lab.datasets import DataFormatError, DataMissingError, load_ag_news_full, load_movies


@pytest.fixture
def news(folder):
    (folder / "ag_news" / "data").mkdir(parents=True)
    return folder / "ag_news"


def test_published_tables_count_topics_from_one(news):
    (news / "train.csv").write_text('"3","Wall St. ""Bears"" Claw","Short, sellers"\n"1","A","b"\n', encoding="utf-8")
    (news / "test.csv").write_text('"4","Chip","fast"\n', encoding="utf-8")
    train = load_ag_news_full("train")
    assert train.texts == ('Wall St. "Bears" Claw Short, sellers', "A b")
    assert train.labels.tolist() == [2, 0]
    assert load_ag_news_full("all").labels.tolist() == [2, 0, 3]
    assert load_ag_news_full("all", limit=1).texts == train.texts[:1]
    with pytest.raises(ArgumentError, match="'val'"):
        load_ag_news_full("val")
    (news / "test.csv").write_text("label,title,text\n", encoding="utf-8")
    with pytest.raises(DataFormatError, match=r"test\.csv.*1\.\.4.*'label'"):
        load_ag_news_full("test")


def test_parquet_of_the_hub(news):
    for k, texts in enumerate((["a b", "c"], ["d"])):
        table = pa.table({"text": texts, "label": [k] * len(texts)})
        pq.write_table(table, news / "data" / f"train-0000{k}-of-00002.parquet")
    train = load_ag_news_full("train")
    assert train.texts == ("a b", "c", "d")
    assert train.labels.tolist() == [0, 0, 1]
    with pytest.raises(DataMissingError, match=r"ag_news/test\.csv.*test-00000-of-00001\.parquet"):
        load_ag_news_full("test")


def test_own_table_of_all_news_comes_first(news, write):
    (news / "train.csv").write_text('"1","A","b"\n', encoding="utf-8")
    write("ag_news_full.parquet", [{"label": 3, "title": "T", "text": "x", "split": "train"}])
    assert load_ag_news_full("train").texts == ("T x",)


def line(name, given, *spans, docid=None):
    groups = [[{"docid": docid or name, "start_token": a, "end_token": b, "text": "..."}] for a, b in spans]
    return json.dumps({"annotation_id": name, "classification": given, "evidences": groups, "query": "?"})


@pytest.fixture
def reviews(folder):
    root = folder / "movies"
    (root / "docs").mkdir(parents=True)
    (root / "docs" / "posR_1.txt").write_text("a good film ,\nreally good\n", encoding="utf-8")
    (root / "docs" / "negR_1.txt").write_text("bad\n", encoding="utf-8")
    (root / "train.jsonl").write_text(line("negR_1.txt", "NEG") + "\n", encoding="utf-8")
    (root / "test.jsonl").write_text(line("posR_1.txt", "POS", (4, 6), (1, 2)) + "\n\n", encoding="utf-8")
    return root


def test_published_reviews_with_their_evidence(reviews):
    test = load_movies("test")
    assert test.texts == ("a good film , really good",)
    assert test.rationales == (((1, 2), (4, 6)),)
    assert (test.labels.tolist(), load_movies("train").labels.tolist()) == ([1], [0])
    assert test.marked(0).tolist() == [False, True, False, False, True, True]
    assert test.items()[0] == {"text": test.texts[0], "label": 1, "rationale": [1, 4, 5]}
    with pytest.raises(DataMissingError, match=r"val\.jsonl.*place"):
        load_movies("all")


def test_reviews_in_a_table_come_first(reviews, folder):
    rows = {"text": ["x y"], "label": [0], "evidence": [[[0, 1]]], "split": ["test"]}
    pq.write_table(pa.table(rows), folder / "movies.parquet")
    assert load_movies("test").texts == ("x y",)


def test_reviews_that_are_not_what_they_should_be(reviews):
    test = reviews / "test.jsonl"
    test.write_text(line("posR_1.txt", "GOOD"), encoding="utf-8")
    with pytest.raises(DataFormatError, match=r"\['NEG', 'POS'\].*'GOOD'"):
        load_movies("test")
    test.write_text(line("posR_1.txt", "POS", (0, 1), docid="negR_1.txt"), encoding="utf-8")
    with pytest.raises(DataFormatError, match="in the document itself"):
        load_movies("test")
    test.write_text('{"annotation_id": "posR_1.txt"}', encoding="utf-8")
    with pytest.raises(DataFormatError, match="classification"):
        load_movies("test")
    test.write_text(line("posR_1.txt", "POS", (5, 7)), encoding="utf-8")
    with pytest.raises(DataFormatError, match="6 words"):
        load_movies("test")
    test.write_text(line("posR_2.txt", "POS"), encoding="utf-8")
    with pytest.raises(DataMissingError, match=r"posR_2\.txt"):
        load_movies("test")


def test_texts_without_marks_have_no_rationale(news):
    (news / "test.csv").write_text('"4","Chip","fast"\n', encoding="utf-8")
    items = load_ag_news_full("test").items()
    assert items[0] == {"text": "Chip fast", "label": 3}
    assert load_ag_news_full("test").marked(0) is None
    assert torch.equal(load_ag_news_full("test").labels, torch.tensor([3]))


def test_names_of_documents_that_no_file_can_have(reviews):
    (reviews / "test.jsonl").write_text(line("x" * 300, "POS") + "\n", encoding="utf-8")
    with pytest.raises(DataFormatError, match="annotation_id"):
        load_movies("test")
