"""A report's Markdown as one HTML page that needs nothing else: style, pictures and their data are inside it.

The page is the Markdown rendered, so nothing is written twice. It holds no script and asks no network; wide tables and
pictures scroll in boxes of their own on a narrow screen; a heading of the fourth level folds what is below it, and
paper shows all. Raw HTML in the text is shown as text: labels and notes come from the user's files.
"""

import base64
import html
import os
import re
from collections.abc import Sequence
from pathlib import Path

_PICTURE = re.compile(r"!\[([^\]]*)\]\(([\w./@-]+\.png)\)")
_DATA = re.compile(r"(?<!!)\[([^\]]*)\]\(([\w./@-]+\.csv)\)")
_FOLDED = re.compile(r"<h4[^>]*>(.*?)</h4>(.*?)(?=<h[1-4][ >]|\Z)", re.DOTALL)
_FIGURE = re.compile(r"<p>(<img [^>]*>)</p>")


def page(markdown: str, folders: Sequence[Path]) -> str:
    """The whole page. Pictures and CSV files that the text names are taken from the first folder that has them."""
    from markdown import Markdown

    renderer = Markdown(output_format="html", extensions=["tables", "fenced_code", "sane_lists", "toc"],
                        extension_configs={"toc": {"toc_depth": "2-2"}})
    renderer.preprocessors.deregister("html_block")
    renderer.inlinePatterns.deregister("html")
    body = renderer.convert(_with_data(markdown, folders))
    body = body.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")
    body = _FIGURE.sub(r'<div class="wide" tabindex="0">\1</div>', body)
    body = _FOLDED.sub(r"<details><summary>\1</summary>\2</details>", body)
    body = body.replace('href="data:text/csv', 'download href="data:text/csv')
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", body, re.DOTALL)
    title = html.unescape(re.sub(r"<[^>]+>", "", heading.group(1))) if heading else "Report"
    head, rest = (body[:heading.end()], body[heading.end():]) if heading else ("", body)
    # The pictures would otherwise pass through a template engine, all megabytes of them.
    return "".join((_HEAD.format(title=html.escape(title), style=_STYLE), head, "<nav>", renderer.toc, "</nav>", rest,
                    "\n</main>\n</body>\n</html>\n"))


def with_pictures(markdown: str, folders: Sequence[Path]) -> str:
    """Markdown with its pictures inside it; one that no folder has stays a reference."""
    def inside(match: re.Match[str]) -> str:
        content = _read(match.group(2), folders)
        return match.group(0) if content is None else f"![{match.group(1)}](data:image/png;base64,{content})"

    return _PICTURE.sub(inside, markdown)


def beside(markdown: str, folder: Path, other: Path) -> str:
    """Markdown for a file in `folder` whose pictures and data lie there or in `other`."""
    def found(match: re.Match[str]) -> str:
        name = match.group(2)
        place = name if (folder / name).is_file() else Path(os.path.relpath(other / name, folder)).as_posix()
        return f"{match.group(0)[:match.start(2) - match.start()]}{place})"

    return _DATA.sub(found, _PICTURE.sub(found, markdown))


def _with_data(markdown: str, folders: Sequence[Path]) -> str:
    def inside(match: re.Match[str]) -> str:
        content = _read(match.group(2), folders)
        return match.group(0) if content is None else f"[{match.group(1)}](data:text/csv;base64,{content})"

    return _DATA.sub(inside, with_pictures(markdown, folders))


def _read(name: str, folders: Sequence[Path]) -> str | None:
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    return None if found is None else base64.b64encode(found.read_bytes()).decode("ascii")


_HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
"""

_STYLE = """\
:root { color-scheme: light; --line: #d0d7de; --soft: #f6f8fa; --link: #0b5cad; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: #fff; color: #1f2328; font: 1rem/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1, h2, h3 { line-height: 1.25; margin: 2.2em 0 0.6em; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; margin-top: 0; }
h2 { font-size: 1.35rem; border-bottom: 1px solid var(--line); padding-bottom: 0.25em; }
h3 { font-size: 1.1rem; }
p, li { overflow-wrap: anywhere; max-width: 48rem; }
a { color: var(--link); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: 0.4rem; margin: 0 0 1.5rem; padding: 0; }
nav a { display: block; padding: 0.3rem 0.7rem; border: 1px solid var(--line); border-radius: 1rem; font-size: 0.9rem;
  text-decoration: none; }
.wide { overflow-x: auto; margin: 0.8rem 0; }
.wide img { display: block; max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.7rem; border-bottom: 1px solid var(--line); white-space: nowrap; text-align: right; }
thead th { background: var(--soft); border-bottom: 2px solid var(--line); vertical-align: bottom;
  white-space: normal; text-wrap: balance; }
.wide + p { margin-top: 0; font-size: 0.87rem; color: #57606a; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; max-width: 18rem;
  white-space: normal; overflow-wrap: break-word; }
thead th:first-child { background: var(--soft); }
code { background: var(--soft); padding: 0.1em 0.3em; border-radius: 4px; font-size: 0.9em; }
pre { background: var(--soft); padding: 0.8rem; overflow-x: auto; border-radius: 6px; white-space: pre-wrap; }
pre code { padding: 0; }
details { margin: 0.8rem 0; border: 1px solid var(--line); border-radius: 6px; padding: 0 0.8rem; }
summary { cursor: pointer; padding: 0.6rem 0; font-weight: 600; }
@media (max-width: 40rem) {
  main { padding: 1rem 0.8rem 3rem; }
  .wide img { max-width: 45rem; }
  th, td { padding: 0.35rem 0.5rem; }
  th:first-child, td:first-child { min-width: 6rem; max-width: 8.5rem; }
}
@media print {
  @page { margin: 1.5cm; }
  html { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  p, li { max-width: none; orphans: 3; widows: 3; }
  h2, h3, summary, p:has(+ .wide):not(.wide + p) { break-after: avoid; }
  .wide + p { break-before: avoid; break-inside: avoid; font-size: 8.5pt; }
  tr, img, .wide:not(:has(tr:nth-child(15))) { break-inside: avoid; }
  .wide { overflow: visible; }
  table { font-size: 8pt; }
  th, td { padding: 0.2rem 0.35rem; }
  td:has(code) { white-space: normal; }
  .wide:has(th:nth-child(8)) table { font-size: 6.8pt; }
  .wide:has(th:nth-child(11)) table { font-size: 5.5pt; }
  th:first-child, td:first-child { position: static; }
  details { border: 0; padding: 0; }
  summary { list-style: none; }
  details::details-content { content-visibility: visible; display: block; }
  a { color: inherit; text-decoration: none; }
}
"""
