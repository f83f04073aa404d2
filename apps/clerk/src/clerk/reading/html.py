"""The text of a web page as a person sees it, line by line. Runs in a child: the parser is native code."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Final

from clerk.errors import Unreadable

_LARGEST: Final = 20_000_000  # bytes; a parsed page takes up to ten times that
_UNSEEN: Final = "head,script,style,noscript,template,svg,iframe,object,select,textarea,[hidden]"
_BLOCKS: Final = (
    "address,article,aside,blockquote,body,caption,center,dd,details,dialog,div,dl,dt,fieldset,figcaption,figure,footer,"
    "form,h1,h2,h3,h4,h5,h6,header,hr,li,main,nav,ol,p,pre,section,summary,table,tbody,tfoot,thead,tr,ul"
)
_BREAK: Final = "\x1e"  # no text has it: it is removed before
_CHARSET: Final = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)


def html_text(path: Path) -> str:
    data = path.read_bytes() if path.stat().st_size <= _LARGEST else None
    if data is None:
        raise Unreadable(f"the web page is larger than {_LARGEST // 10**6} MB")
    if not data:
        raise Unreadable("the file is empty (0 bytes)")
    if data.startswith(b"%PDF-"):
        raise Unreadable("this is no web page but a PDF")
    return _visible(_decoded(data))


def _decoded(data: bytes) -> str:
    for mark, encoding in ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    said = _CHARSET.search(data, 0, 4096)
    for encoding in (said[1].decode() if said else "utf-8", "utf-8"):
        try:
            return data.decode(encoding)
        except (LookupError, ValueError):
            continue
    return data.decode("cp1252", "replace")


def _visible(source: str) -> str:
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(source.replace(_BREAK, " "))
    for node in tree.css(_UNSEEN):
        node.decompose()
    for node in tree.css("pre"):
        for inner in list(node.traverse(include_text=True)):
            if inner.tag == "-text":
                inner.replace_with((inner.text_content or "").replace("\n", _BREAK))
    for node in tree.css(_BLOCKS):
        node.insert_before(_BREAK)
        node.insert_child(_BREAK)
        node.insert_after(_BREAK)
    for node in tree.css("br"):
        node.replace_with(_BREAK)
    for node in tree.css("td,th"):
        node.insert_after(" ")
    body = tree.body
    lines = (" ".join(line.split()) for line in (body.text() if body else "").split(_BREAK))
    return "\n".join(line for line in lines if line)
