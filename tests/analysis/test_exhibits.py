"""What the report is given: pictures, data and text that survive the way through a file."""

import json

import pytest

from kdcore.analysis.exhibits import INDEX, Exhibit, Exhibits, write_csv
from kdcore.errors import UserError

MAPS = Exhibit("Cosines", "maps.png", "cosines.csv", "What one sees.")
BARS = Exhibit("Cosines again", "bars.png", "cosines.csv", "The same.")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "movies"
    place.mkdir()
    for name in ("maps.png", "bars.png", "cosines.csv"):
        (place / name).write_text("x")
    Exhibits("movies", (MAPS, BARS), ("It is not defined.",)).write(place)
    return place


def test_what_was_written_is_read(folder):
    found = Exhibits.load(folder)
    assert found == Exhibits("movies", (MAPS, BARS), ("It is not defined.",))
    assert found.files == ("maps.png", "cosines.csv", "bars.png")


def test_a_section_names_every_picture_and_its_data():
    text = "\n".join(Exhibits("movies", (MAPS, BARS), ("It is not defined.",)).markdown("analysis/movies"))
    assert text == """\
### Analyses

**Cosines**

![Cosines](analysis/movies/maps.png)

What one sees. Data: [cosines.csv](analysis/movies/cosines.csv).

**Cosines again**

![Cosines again](analysis/movies/bars.png)

The same. Data: [cosines.csv](analysis/movies/cosines.csv).

- It is not defined.
"""
    assert Exhibits("movies", (), ()).markdown("analysis/movies") == []


def test_numbers_have_six_decimals_and_no_negative_zero(tmp_path):
    write_csv(tmp_path / "a.csv", ("method", "layer", "value"), [("a,b", 1, 1 / 3), ("c", 2, -1e-9)])
    assert (tmp_path / "a.csv").read_bytes() == b'method,layer,value\n"a,b",1,0.333333\nc,2,0.000000\n'


@pytest.mark.parametrize("damage", ["missing", "{", "[]",
                                    json.dumps({"dataset": "movies", "shown": [{}], "absent": []})])
def test_a_damaged_index_says_what_to_run(folder, damage):
    if damage == "missing":
        (folder / INDEX).unlink()
    else:
        (folder / INDEX).write_text(damage)
    with pytest.raises(UserError, match=r"analysis\.json .*; run `kdflow analyse movies` again"):
        Exhibits.load(folder)


def test_a_missing_picture_is_named(folder):
    (folder / "bars.png").unlink()
    with pytest.raises(UserError, match=r"bars\.png is missing; run `kdflow analyse movies` again"):
        Exhibits.load(folder)
