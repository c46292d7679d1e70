"""A data folder with made-up files."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


def encode(array, kind):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind)
    return buffer.getvalue()


def pets_rows():
    """Three breeds, four photos each, the last of each breed in test; photo k is a plain grey of 20 k."""
    breeds = [("Birman", 0), ("great_dane", 1), ("Maine_Coon", 0)]
    rows = []
    for label, (name, species) in enumerate(breeds):
        for number in range(4):
            grey = 20 * len(rows)
            trimap = np.full((12, 12), 2, dtype=np.uint8)
            trimap[3:9, 3:9] = 1
            rows.append(
                {
                    "name": f"{name}_{number + 7}",
                    "image": encode(np.full((12, 12, 3), grey, dtype=np.uint8), "PNG"),
                    "trimap": encode(trimap, "PNG"),
                    "breed": label,
                    "species": species,
                    "split": "test" if number == 3 else "trainval",
                }
            )
    return rows


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MHEX_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def rows():
    return pets_rows()


@pytest.fixture
def write(folder):
    def write_file(name, rows):
        pq.write_table(pa.Table.from_pylist(rows), folder / name)

    return write_file
