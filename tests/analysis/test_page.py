"""A report as one page: complete in itself, and safe from what users' files hold."""

import base64
import re
from html.parser import HTMLParser

import pytest

from kdcore.analysis.page import beside, page, with_pictures

TEXT = """\
# Results: a & b

Some words with <script>alert(1)</script> and a label `<5`.

## Table one

|  | test acc |
| --- | ---: |
| rail_kd_l | **85.1 ± 0.2 †‡** |
| x <b> | 1 [-0.1, +0.2] |

![curves, by epoch](curves/a.png)

Data: [similarity.csv](analysis/a/similarity.csv).

#### Where these numbers come from

|  | command |
| --- | ---: |
| a | `dvc repro x@a-b` |

## Another

- one
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "a.png").write_bytes(b"\x89PNG first")
    (tmp_path / "analysis" / "a").mkdir(parents=True)
    (tmp_path / "analysis" / "a" / "similarity.csv").write_text("x,y\n1,2\n")
    return tmp_path


class Elements(HTMLParser):
    """Every element with its attributes; fails on one that is closed wrongly."""

    VOID = ("meta", "img", "br", "hr", "link")

    def __init__(self, text):
        super().__init__()
        self.found, self._open = [], []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def test_a_page_needs_nothing_else(folder):
    text = page(TEXT, [folder])
    elements = Elements(text)
    for kind in ("script", "link", "iframe"):
        assert not elements.all(kind)
    for _, attributes in elements.found:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("data:", "#")), attributes
    assert not re.search(r"url\(|@import|https?:", text)
    content = base64.b64encode(b"\x89PNG first").decode()
    assert elements.all("img")[0]["src"] == f"data:image/png;base64,{content}"


def test_data_travel_with_the_page_as_a_download(folder):
    link = next(link for link in Elements(page(TEXT, [folder])).all("a") if "download" in link)
    assert base64.b64decode(link["href"].removeprefix("data:text/csv;base64,")) == b"x,y\n1,2\n"


def test_what_users_files_hold_is_text(folder):
    text = page(TEXT, [folder])
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<code>&lt;5</code>" in text
    assert "x &lt;b&gt;" in text


def test_wide_things_scroll_in_boxes_of_their_own(folder):
    text = page(TEXT, [folder])
    assert text.count('<div class="wide" tabindex="0"><table>') == text.count("<table>") == 2
    assert '<div class="wide" tabindex="0"><img ' in text
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "@media print" in text
    phone = text[text.index("@media (max-width"):text.index("@media print")]
    assert re.search(r"td:first-child \{[^}]*max-width", phone), "a long name that stays would hide all numbers"


def test_sections_are_linked_and_the_last_level_folds(folder):
    text = page(TEXT, [folder])
    elements = Elements(text)
    assert "<title>Results: a &amp; b</title>" in text
    assert [link["href"] for link in elements.all("a")][:2] == ["#table-one", "#another"]
    folded = text[text.index("<details>"):text.index("</details>")]
    assert "<summary>Where these numbers come from</summary>" in folded
    assert "dvc repro x@a-b" in folded
    assert "Another" not in folded


def test_numbers_and_names_stay_as_they_were(folder):
    text = page(TEXT, [folder])
    assert "rail_kd_l" in text
    assert "<strong>85.1 ± 0.2 †‡</strong>" in text
    assert "1 [-0.1, +0.2]" in text


def test_the_first_folder_that_has_a_picture_gives_it(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "curves").mkdir()
    (other / "curves" / "a.png").write_bytes(b"\x89PNG second")
    second = base64.b64encode(b"\x89PNG second").decode()
    assert second in page(TEXT, [other, folder])
    assert second not in page(TEXT, [folder, other])


def test_pictures_travel_inside_markdown_and_what_is_not_there_stays(tmp_path):
    (tmp_path / "curves.png").write_bytes(b"\x89PNG")
    text = with_pictures("a ![loss, by epoch](curves.png) b ![gone](gone.png) ![far](http://x/y.png)", [tmp_path])
    content = base64.b64encode(b"\x89PNG").decode()
    assert text == f"a ![loss, by epoch](data:image/png;base64,{content}) b ![gone](gone.png) ![far](http://x/y.png)"


def test_markdown_that_lies_elsewhere_names_its_pictures_from_there(folder):
    here = folder / "measured"
    (here / "curves").mkdir(parents=True)
    (here / "curves" / "b.png").write_bytes(b"\x89PNG")
    text = beside("![a](curves/a.png) ![b](curves/b.png) [s](analysis/a/similarity.csv)", here, folder)
    assert text == "![a](../curves/a.png) ![b](curves/b.png) [s](../analysis/a/similarity.csv)"
