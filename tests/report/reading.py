"""Reads HTML back: its table, its text, the attributes of its elements."""

from html.parser import HTMLParser

VOID = {"br"}


class Read(HTMLParser):
    """Fails on elements that are not closed in order.

    rows: the text of each cell; elements: (name, attributes); text: all of it.
    """

    def __init__(self, page):
        super().__init__()
        self.rows, self.elements, self.text, self._open = [], [], "", []
        self.feed(str(page))
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self._open.append(tag)
        elif self.rows and self.rows[-1]:
            self.rows[-1][-1] += "\n"

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "td" in self._open or "th" in self._open:
            self.rows[-1][-1] += data
