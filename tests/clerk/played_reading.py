"""A reader that is played: put in the place of `clerk.pipeline.documents.read` in the test's own process."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from clerk import errors, storage
from clerk.pipeline.working import working
from clerk.storage import Document
from gristmill import Context


def read(ctx: Context, sha256: str, backend: str, content_type: str) -> dict[str, Any]:
    with working(ctx) as work:
        document = Document.of_key(str(ctx.key))
        path = work.files.source(document)
        assert path is not None
        what = json.loads(path.read_text())
        with (Path(os.environ["CLERK_PLAY"]) / "read").open("a") as order:
            order.write(f"{ctx.subject} {ctx.key}\n")
        if "sleep" in what:
            time.sleep(what["sleep"])
        if what.get("read"):
            raise getattr(errors, what["read"])(f"{document.key} cannot be read{what.get('why', '')}")
        for number in range(1, what.get("pages", 1) + 1):
            storage.write(work.files.text(document) / f"{number}.txt", f"page {number} of {document.key}".encode())
        storage.write(work.files.marker(document), sha256.encode())
        return {"pages": what.get("pages", 1)}
